"""What is stored, and what it means: for people and programs, from the files of a living or dead job. Writes nothing there.

May import: store, checkpoint, transport, config, core. Start reading at stored.py.
"""
