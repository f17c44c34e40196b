"""The fork server: a process per host that has imported what the workers need, and is forked for each of them.

The launcher asks by way of template.py, its own side of that process; a worker proxy by way of proxy_template.py. template_process.py is
the program. What is imported, and for whom, the launcher says (preload.py, start_method.py). May import: of the launcher only what begins,
ends and names processes.
"""
