"""The prose of docs/reference/protocol.md: connection, order of the conversation, answers. Every number in braces comes from the code (protocol_page.py)."""

from __future__ import annotations

HEAD = """\
# Wire protocol

Version {version}. Enough to write a client: tests/protocol keeps one that was written from this page, with Python's standard library only.

## The connection

A node opens one TCP connection to the scheduler's address (`MS_SCHED_HOST`, `MS_SCHED_PORT`) and asks for a WebSocket (RFC 6455, version 13):

```
GET {path} HTTP/1.1
Host: 127.0.0.1:8118
Upgrade: websocket
Connection: Upgrade
Sec-WebSocket-Key: <16 random bytes in base64>
Sec-WebSocket-Version: 13
```

No subprotocol, no extension (no compression), no `Origin`: that is what browsers send, and they are refused. The answer is `101`.

| status | meaning |
|---|---|
| 101 | go on |
| 400 | the connection was gone before the answer |
| 401 | the proof of the job's token is not there, or its challenge is over (see Who is let in) |
| 403 | the request has an `Origin`; or its proof was made with another token, or names nobody |
| 404 | no such path |
| 405 | another method than GET or HEAD for a path of inspection |
| 421 | without a token to prove: a view or action was asked for under a `Host` that is no IP address, not `localhost` and no name of the scheduler |
| 426 | `{path}` without a WebSocket request |
| 500 | a view of inspection failed; the reason is in the scheduler's log |
| 503 | too many connections have sent a message and are not admitted, beside the nodes of the job; dial again with the back-off below |

Each message is one **binary** WebSocket message, in one frame or several; frames of a client are masked, as the RFC demands. Text ends
the connection. A ping is answered with a pong; the scheduler sends none by itself.

**Who is let in.** A job has a token: MS_JOB_TOKEN, or what the file `job_token` of MS_RECOVERY_PATH holds. Where it is `off`, or there is
neither, nothing is proven and what follows is left out. A client asks `GET {challenge_path}` first, on the same connection, and is given a challenge, good for one
request within {challenge_s} s. The request itself (the WebSocket's, or that of a view) then carries

```
Recovery-As: node worker_0
Authorization: {scheme} CHALLENGE NONCE PROOF
```

`Recovery-As` is `node NODE_ID`, `launcher ADDRESS` or `viewer`; NONCE is 32 random hex digits; PROOF is the HMAC-SHA256 in hex, keyed with the token, of
these lines, joined by line ends: `{purpose}`, `client`, the method, the path, `Recovery-As`, the SHA-256 of the body in hex, CHALLENGE, NONCE. The answer
carries `{proof_header}`: the same with `scheduler` in the place of `client`. A client that has a token ends the connection where that is missing or wrong. A node
registers under its own id alone; what else each may send stands below. Without a proof only `/healthz` is answered.

**Encoding.** A message is one [msgpack](https://msgpack.org) map, never an array. Its keys are the names of the fields, as text, and the
key `type` (text) names the message; their order means nothing. Whole numbers are msgpack integers, text is UTF-8 (`str`, not `bin`),
nothing is `nil`, a list is an array. A field with a default may be left out; a key that is not known is ignored; a missing one, another
type, a number or text outside its bounds ends the connection (1008). A message is never answered with an error.

**Names.** A node id matches `{pattern}`. Ids of digits only are the ranks themselves (0 to count - 1), and then all of a role are.
Other ids get their ranks when the job forms: in the order of (host, id), runs of digits as numbers.

**Closes.** Whoever closes puts the reason into the close frame, for people.

| code | when |
|---|---|
| 1000 | an ordinary end: `refused: CODE`, `lost: ...` (the lease), `replaced by a newer connection`, `not registered` (a message came before `register`, or from an earlier incarnation), `registered already on this connection`, `heard` (after `exited`), `the scheduler stops` |
| 1002 | no WebSocket: a broken frame |
| 1008 | no message of ours: text, a frame above the limit before admission, an unknown `type`, a field that does not fit |
| 1009 | a message of more than {frame_after:,} bytes |
| none | cut off: a deadline below has passed, or the peer does not read |

## Limits and deadlines

| what | how much |
|---|---|
| a message before admission | {frame_before:,} bytes |
| a message after admission, either way | {frame_after:,} bytes |
| from TCP accept to the first whole message | {first_message_s} s |
| from `register` to an answer | none is set; a node that receives nothing for {ms_receive_msg_timeout} dials again |
| a connection that has sent a message, and is not admitted | `MS_NODE_TIMEOUT` + `MS_REJOIN_WINDOW` of silence |
| connections that have sent no whole HTTP request | {beside_nodes} beside one for each node of the job; beyond that the oldest is cut off |
| connections with a request, without a proof of the job's token and without a message | {beside_nodes} beside one for each node of the job; beyond that the oldest of the address that has the most is cut off |
| connections with a proof or a message and without admission | {beside_nodes} beside one for each node of the job; beyond that 503 |
| what waits for a peer that does not read | {outbox_messages} messages or {outbox_bytes:,} bytes; beyond that it is cut off |
| the exchange of close frames | {close_s} s |
| a scheduler whose job has ended | {shutdown_s} s for its nodes to receive `job_ended` and disconnect |

There is no limit on the rate of an admitted node. A node that dials and finds nobody, or whose connection is closed again before it was admitted for a while, waits {backoff_min} ms, then twice as long each time up to
{backoff_max:,} ms, half of each wait random.

"""

CONVERSATION = """\
## The order of the conversation

A worker from its start to the job's end (`->` from the node, `<-` from the scheduler):

```
-> register            within {first_message_s} s of the accept
<- admitted            keep incarnation, token, run, job        or refused (see Refusals), or job_ended: then the connection ends
-> heartbeat           from now on, whatever else happens
<- heartbeat_ack
-> ready               what it holds; generation 0, step 0
<- received
   ...                 until every worker is admitted and ready, and every server admitted
<- rollback            the plan: generation, rank, step to begin at
-> rendezvous_open     rank 0 only, once it listens for the others
<- rendezvous          every other rank
-> state_loaded        the world is formed and the plan's checkpoint loaded. Of a plan with `live_rank`: its state taken, with `content`
<- state_agreed        of a plan with `live_rank` alone, when all of `live_replicas` have the same `content`: not before may the first step begin
-> first_step          after the first step
-> checkpoint_report   after each save
<- received            then committed, to all, when every rank holds the step
   interrupt           at any time: a node was lost. Stop, then ready again, with the generation of the plan that was followed
<- rollback            generation + 1
-> done                after the last step; it stays connected
<- received
<- job_ended           when every rank is done. Disconnect
```

**Heartbeats** are due from `admitted` until the connection ends, in training, while waiting and after `done`: a random time between
{ms_retry_interval_lower} and {ms_retry_interval_upper} after the one before.
`sequence` counts 1, 2, 3, ...; `generation` is the newest plan's (0 before the first), `step` the last step that was applied. Any
message shows that the node is alive, not just this one.

**The lease.** A node that is silent for {ms_node_timeout} is lost: its connection is closed, its generation is over for all.
`MS_DISABLE_HEARTBEAT=1`, or a negative value, in the scheduler: never. A node that receives nothing for {ms_receive_msg_timeout} closes and dials.

**Coming back.** A connection that closes makes its node *suspect*. Within {ms_reconnect_grace} the same process may resume as if nothing
had happened: a new connection, `register` with the same `node_id`, `request_id` and `request_secret` (a process has one for all its registrations), `token` and
`incarnation` of its `admitted`, and `generation` of the last plan that it received. It receives `admitted` with `resumed` true, the same incarnation, and the token to use from now
on. Then it sends again, in their order, every request that was not answered (`done` also when it was: a restarted scheduler counts from zero),
its `collective_failed` and `rendezvous_open` of this generation, its `state_loaded` if that has `content`, and its `ready` if it waits for a plan. The scheduler brings it to where the
job stands: `interrupt` if the generation is over meanwhile, `rollback` if there is a newer plan, `rendezvous` if it is known.
After the grace the node is lost, yet its token still resumes it, into the next generation. After a restart of the scheduler a
node has one lease, not one grace, to resume. A `register` with a token, and with generation 0 and incarnation 0, is a process that
replaced itself: it keeps its incarnation, and the generation is interrupted because its training state is gone.

**A new process of a lost id** has no token. It is refused until {ms_rejoin_window} after the last message of the id (or after its
connection closed, if that came later), then admitted with incarnation + 1 and the same rank. From then on the earlier token is FENCED.

**Request ids.** Messages with a `request_id` are answered when what they report is durable. Unanswered ones are sent again after a resume,
with the same id: the repeat gets the same answer and has one effect (the scheduler remembers {remembered} answers for each node). The id
of a `register` is more: a repeat of the one that admitted the current incarnation is taken for the holder itself, whose answer was lost,
and it is given a fresh token, if it brings the `request_secret`: 128 random bits, as 32 hex digits, drawn by the process when it starts. Its
`request_id` is the first 32 hex digits of the SHA-256 of that text. The id alone is taken for another process that uses the same node id.

**Order.** What is answered behind a write comes in the order of the writes. `interrupt`, `rendezvous`, `refused` and `heartbeat_ack` wait for no
write and may overtake it: an `interrupt` the `received` of a request, or the `rollback` of its own generation (then it comes once more
behind it). Every node keeps reading while it waits for an answer.

**Run and generation.** A checkpoint belongs to the `run` of `admitted` and to the generation in which it was written. Reports of another
run, or of steps that a later plan went back before, are received and count nowhere. A `ready` that names an older generation than the
newest plan sent on this connection is out of date: it is dropped without an answer. A node that sends `ready` while its generation trains
ends that generation.

**The end.** After `job_ended` (whatever the outcome) a node closes with 1000; requests are answered with `job_ended`, heartbeats still with
`heartbeat_ack`. A process that registers while a finished scheduler ends receives `job_ended` too: the next run begins with the next scheduler.

**Files between nodes.** A node that names itself in `serves` (`register`) answers there, over HTTP and with the same proofs as the scheduler's port,
`GET /checkpoints/DIGEST/manifest` and `GET /checkpoints/DIGEST/files/N` (N from 0, in the manifest's order; `Range` is heard), where DIGEST names a
contribution of `held` or `copies`. 404: it does not have it; 503: others are served, ask again. The manifest's seal (of format 1: the file's
SHA-256) must be DIGEST, and each file what the manifest says: whoever fetches checks both. A node without `serves` is asked for nothing and ordered no copies.

**Inspection.** `GET` of `/healthz` (text), `/status`, `/lost` (for launchers), `/generations`, `/checkpoints`, `/events`, `/history` (for the live page), `/drain` (JSON) and `/metrics` (text, for Prometheus) on the same port, without registering; `/metrics` also without a proof, by processes of the scheduler's own host, and with `Authorization: Bearer TOKEN`. `POST /drain` with `{{"target": "NODE OR HOST"}}`, from
the scheduler's own host only, begins a planned departure.

"""

ANSWERS: dict[str, tuple[str, str]] = {
    "register": (
        "anybody, first and once per connection",
        "`admitted`; or `refused`, then `admitted` later or a close; or `job_ended`, then the node disconnects",
    ),
    "ready": (
        "every worker: after `admitted` and after each `interrupt`, once training has stopped. A server may",
        "`received`; `rollback` once every rank is ready. Nothing if it is out of date (above)",
    ),
    "heartbeat": ("every node, all the time", "`heartbeat_ack` with the same `sequence`"),
    "checkpoint_report": (
        "a rank, when file and manifest are durable",
        "`received`; then `committed` to every node, if it was the last rank of that step",
    ),
    "not_saved": (
        "a rank whose save failed, or the upload of one, in any state of the job",
        "`received`",
    ),
    "checkpoint_invalid": (
        "a rank whose file of the plan does not verify, before `state_loaded`; `path` is `live:<rank>` where it cannot give or take what `live_rank` has in its memory",
        "`received`, and `interrupt` to all; the next plan goes back further",
    ),
    "rendezvous_open": (
        "rank 0 of the generation; again after a resume",
        "nothing; `rendezvous` to every other worker. Of another generation: nothing at all. Of another rank: a close",
    ),
    "state_loaded": (
        "every rank, once per generation; with `content` again after a resume",
        "nothing. Of a plan with `live_rank`: `state_agreed` to every worker when all have sent their `content`, again to one that sends it again; `interrupt` to every worker when two of one `live_replicas` differ",
    ),
    "first_step": ("every rank, once per generation", "nothing"),
    "collective_failed": (
        "a rank whose data plane broke",
        "no answer of its own: `interrupt` to every worker. Of an older generation: nothing",
    ),
    "failure": (
        "a worker whose own code raised, as its last message",
        "`received`; then it disconnects, and counts as lost at once",
    ),
    "done": (
        "every rank after its last step",
        "`received`; `job_ended` when all are. Nothing if its generation is over: it is interrupted and trains again",
    ),
    "leave": (
        "a node that is asked to stop, as its last message",
        "`received`; then it disconnects. Its id is free at once; a worker's generation is interrupted",
    ),
    "depart": (
        "a rank that is asked to end and can train on for a while, instead of `leave`",
        "`not_handed_over`: it sends `leave` then. Or `save_at` to every rank, and in the end `handed_over` or `not_handed_over`",
    ),
    "stop_training": (
        "a rank whose script has called `session.stop()`, at the end of that step, where it waits; again after a resume, before `ready`",
        "`save_at` with `ends_training` to every rank, and `training_ends` once all stop at one step. Nothing if another rank has asked before, or its generation is over: the next `rollback` has `ends_at`",
    ),
    "position": (
        "a rank, to each `save_at` of its generation, at once; again if it then cannot save, or comes to the end of its loop first (`is_over`)",
        "nothing; another `save_at` if one rank has passed the step",
    ),
    "copy_report": (
        "a node that has made a copy it was ordered to make",
        "`received`; `copies_kept` to every node, if it was the last copy of that step",
    ),
    "copy_failed": (
        "a node that could not fetch a contribution from the nodes that it names: of a copy, or its own of a plan with `sources`",
        "`received`; of a plan (`generation`) that it gives up, `interrupt` to all: the next plan asks others, or goes back further",
    ),
    "upload_report": (
        "a rank that was sent `upload_order`: its part is there, or (`is_there` false) never will be",
        "`received`; the next `upload_order` to every rank, if it was the last one or a part that will not come",
    ),
    "exited": (
        "a launcher alone, on a connection of its own, without `register`. Believed only of the process (`pid`) that holds the id, and from the host that the node came from or names; from elsewhere with the `process` that it named. Of the process that held the id before, only how it ended is written down; `found`: its end was found, and not waited for",
        "a close (1000, `heard`)",
    ),
    "stop_job": (
        "a launcher alone, on a connection of its own, without `register`; again, with the same `request_id`, about every half second",
        "`save_at` to every rank; `job_saved` when all have saved, when that is given up, or at once where it cannot be",
    ),
}
"""By message of a node: who sends it and when; what comes back."""

FROM_SCHEDULER: dict[str, str] = {
    "admitted": "keep it; begin heartbeats; after the first one send `ready`",
    "refused": "wait for `admitted` on this connection, or `retry_after_ms`, then register again (the same `request_id`); nothing there: end",
    "heartbeat_ack": "nothing: the scheduler is alive",
    "received": "forget the request: it is durable",
    "interrupt": "stop after the step; send `ready`. It comes twice, and may name a generation that is over for this node already: then nothing",
    "rollback": "load `step` of the own file `path` (0: begin at step 0), form the world. With `sources` instead of a path: fetch `digest` from one of them first. With `live_rank`: form the world, and there take the state that this rank has in its memory, together with `live_replicas` (empty: all ranks); where `live_structure` is empty it is in that rank's checkpoint, the own file `path`, which it loads first. A generation that is not newer than the own one: ignore",
    "rendezvous": "connect to rank 0 there",
    "state_agreed": "begin the first step of that generation, if it is the own one",
    "committed": "checkpoints older than the newest two committed steps may go, but for the steps `copied` and `copying`",
    "copy_order": "fetch the contribution `checkpoint.digest` from one of `sources`, in that order; verify it, keep it, send `copy_report`. It may come again: then nothing new. "
    "A node that cannot: `copy_failed` with `gives_up`",
    "copies_kept": "copies of steps older than `oldest` may go",
    "upload_order": "to a node with `stores`: send the own contribution `checkpoint` to object storage, instead of one that was ordered before; then `upload_report`. "
    "It may come again. Behind `job_ended` every rank sends the newest committed step without it",
    "save_at": "answer `position`. `step` 0: no more. Else stop after that step, if it is not passed; save it, report it, and wait for the next message about it, an `interrupt`, or the end of the connection. With `ends_training` it is not saved, and the wait outlasts the connection",
    "training_ends": "end the loop after that step, and send `done` when the script is through. If it is passed: `collective_failed`",
    "go_on": "train on, if it waits at a step of this drain",
    "handed_over": "end: it has left, and another process takes its rank",
    "not_handed_over": "send `leave` and end, as if nothing had been asked",
    "job_saved": "to a launcher that has sent `stop_job`: end the processes of this host",
    "offer": "to a node that holds no rank, or that has taken one over and begins: look for the files of `rank`, where `held` says and where `replaced` saved; "
    "send `ready` with that `rank`. A node that cannot: the same without `held`",
    "job_ended": "close, and end: with success if `outcome` is finished",
}
"""By message of the scheduler: what a node does."""

_NEVER = "nothing"
REFUSALS: dict[str, tuple[str, str]] = {
    "NODE_ALIVE": (
        "no token, and the id (or the one in `replaces`) is held by a living process (`holder_connected` true), or by one that may still come back (false)",
        "{ask_again} ms beside a connected holder, else what is left until it counts as lost. Give up after one lease with `holder_connected` true: the holder is alive",
    ),
    "REJOIN_WINDOW": (
        "no token, and the id was lost less than a rejoin window ago",
        "what is left of the window",
    ),
    "UNKNOWN_TOKEN": (
        "a token for an id that this store does not know",
        "0: register again without the token",
    ),
    "FENCED": ("the token of an earlier incarnation, or of one whose slot is taken, or that left", _NEVER),
    "WORLD_FULL": (
        "every slot of the role is taken by another id, and so are the places of standbys",
        _NEVER,
    ),
    "NODE_ID_INVALID": (
        "the id belongs to the other role, or cannot be a rank beside the others (see Names)",
        _NEVER,
    ),
    "JOB_MISMATCH": (
        "`worker_count`, `server_count` or `recovery_enabled` differ from the scheduler's",
        _NEVER,
    ),
    "PROTOCOL_VERSION": ("`protocol` is not the scheduler's", _NEVER),
}
"""By code: when, and what `retry_after_ms` is."""
