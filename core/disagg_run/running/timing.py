"""How long a run waits for what: one record, so that nothing hides a deadline."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Timing:
    """Deadlines and intervals of a run, all in seconds."""

    #: Between two signs of life on a connection of the star.
    heartbeat_s: float = 0.5
    #: Without a sign of life, or stopped by a signal, for so long: an agent or a process counts as hung.
    stall_s: float = 3.0
    #: Until every rank's agent must have joined rank 0: nodes load their images meanwhile, and public launchers wait up
    #: to ten minutes for it.
    join_s: float = 600.0
    #: From SIGTERM to SIGKILL where the run ends in order; real engines were seen to take up to 2.3 s.
    grace_s: float = 8.0
    #: The same after a failure: what remains is not worth waiting for, and all must be down within two seconds.
    failure_grace_s: float = 1.0
    #: A process that was ready and passes none of its HTTP probes for so long counts as hung. Long, because a server
    #: under full load answers its health path late (some generate a token for it).
    hang_s: float = 60.0
    #: Between two such probes; at least four are made within hang_s.
    watch_s: float = 15.0
    #: Between two looks whether all processes of a server run that can say that it is broken.
    family_s: float = 0.25
    #: Between two lines that say what is waited for.
    progress_s: float = 10.0
    #: For the first generation through the router, which compiles kernels in a real engine.
    canary_s: float = 300.0
    #: For errors that the router answers before that generation comes: it may not have found its workers yet.
    canary_errors_s: float = 60.0
    #: For a process that is ready on its own node to answer from another one.
    reach_s: float = 30.0
    #: Before a failed request is blamed: a process that died and caused it is reported meanwhile, and is the culprit.
    settle_s: float = 1.0
    #: For one streamed request of the smoke test.
    request_s: float = 120.0
