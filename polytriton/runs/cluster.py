"""Workers that are actors of a Ray cluster, so many on each machine.

Nothing needs a shared disk. A compiled network goes into Ray's object store once, from where each machine fetches it once
and unpacks it into a cache of its own; properties and images travel with their queries. Ray carries the bytes of jobs and
replies; what they hold is MessagePack, and what lies in the cache is an artifact, checked as every artifact is.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from polytriton.artifact import MANIFEST, pack
from polytriton.errors import PolytritonError, ResourceError, UsageError
from polytriton.frontend.vnnlib import load_text
from polytriton.knobs import knobs
from polytriton.runs.asker import Settings, find_artifact
from polytriton.runs.queries import VnnlibFile
from polytriton.runs.share import Share, divide
from polytriton.runs.spread import SpreadEngine
from polytriton.runs.task import Event, Job, Reply, Task
from polytriton.runs.worker import Hello, Host
from polytriton.workers.process import WorkerLost

START_SECONDS = 180.0  # for a worker to be placed and to import torch
CONNECT_SECONDS = 15.0
TRIES = 3  # one more than elsewhere: a machine that leaves says nothing about the queries it had
SHIPPED = "shipped"  # the folder of a machine's cache
ENTRIES = 64  # shipped networks kept there
MEMBER = re.compile(r"(?:[a-z]+/)?\w[\w.]*", re.ASCII)  # a file of an artifact: nothing outside its folder


def find_ray() -> Any:
    """The library, told not to report its use to its makers."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise UsageError("Ray is not installed", "pip install 'polytriton[ray]' here and on every machine of the cluster") from None
    return ray


@dataclass(frozen=True)
class Freight:
    """A network on its way: its digest, and where in the object store its files are."""

    digest: str
    files: Any


class Shipping:
    """Puts each network into the object store once, whoever asks first."""

    def __init__(self, ray: Any) -> None:
        self._ray, self._lock = ray, Lock()
        self._sent: dict[str, Freight | PolytritonError] = {}

    def freight(self, network: str) -> Freight:
        with self._lock:
            if network not in self._sent:
                try:
                    self._sent[network] = self._put(Path(network))
                except PolytritonError as error:
                    self._sent[network] = error
        found = self._sent[network]
        if isinstance(found, PolytritonError):
            raise found
        return found

    def _put(self, path: Path) -> Freight:
        artifact = find_artifact(path)
        manifest, contents = pack(artifact.compiled, artifact.imported, artifact.kernels)
        return Freight(manifest.digest, self._ray.put({**contents, MANIFEST: manifest.encode()}))


def unpack(cache: Path, digest: str, files: Mapping[str, bytes]) -> Path:
    """The artifact in this machine's cache, whole or not at all; several workers may come at once."""
    target = cache / SHIPPED / f"{digest}.poly"
    if not target.is_dir():
        if not all(MEMBER.fullmatch(name) for name in files):
            raise UsageError("a shipped network names files that no artifact has", "install the same version of polytriton everywhere")
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{digest[:16]}-"))
        try:
            for name, data in files.items():
                (made / name).parent.mkdir(exist_ok=True)
                (made / name).write_bytes(data)
            with suppress(OSError):  # another worker's is there already
                made.rename(target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        _prune(target.parent)
    os.utime(target)
    return target


def _prune(folder: Path) -> None:
    kept = sorted(folder.glob("*.poly"), key=lambda p: p.stat().st_mtime)
    for old in kept[:-ENTRIES]:
        shutil.rmtree(old, ignore_errors=True)


class Actor:
    """The far end, made by Ray on the machine it is for."""

    def __init__(self, hello: bytes) -> None:
        self._own: tempfile.TemporaryDirectory[str] | None = None
        self._cache = knobs().cache
        if self._cache is None:
            self._own = tempfile.TemporaryDirectory(prefix="polytriton-")
            self._cache = Path(self._own.name)
        self._hello = hello
        self._host: Host | None = None

    def ready(self) -> bytes:
        """An empty reply, or why this worker cannot work: an error inside Ray's own start would be told as a trace."""
        from polytriton.runs.task import Failure

        try:
            self._host = self._host or Host(self._hello)
            return msgspec.msgpack.encode(Reply())
        except Exception as error:
            return msgspec.msgpack.encode(Reply(failure=Failure.from_error(error)))

    def pid(self) -> int:
        return os.getpid()

    def hold(self, network: str, digest: str, files: dict[str, bytes]) -> None:
        assert self._host is not None and self._cache is not None
        self._host.places[network] = unpack(self._cache, digest, files)

    def work(self, job: bytes) -> bytes:
        assert self._host is not None
        return self._host.work(job)


class RayActor:
    """The near end of an actor, which has a method `pid`. Only `stop` may be called from another thread than the others."""

    def __init__(self, ray: Any) -> None:
        self._ray, self._stopped = ray, False
        self._actor: Any = None

    def _begin(self, kind: type, *given: object, **options: Any) -> Any:
        """Makes a new one."""
        self.end()
        if self._stopped:
            raise WorkerLost("was ended by its run")
        self._actor = self._ray.remote(kind).options(max_restarts=0, **options).remote(*given)
        return self._actor

    def alive(self) -> bool:
        if self._actor is None:
            return False
        try:
            self._get(self._actor.pid.remote(), 30.0)
            return True
        except WorkerLost:
            return False

    def stop(self) -> None:
        self._stopped = True
        self.end()

    def end(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            with suppress(Exception):  # whatever Ray says of one that is gone already
                self._ray.kill(actor, no_restart=True)

    def _get(self, reference: Any, timeout: float | None = None) -> Any:
        try:
            return self._ray.get(reference, timeout=timeout)
        except self._ray.exceptions.RayTaskError as error:  # raised by the worker, which lives on
            raise error.cause if isinstance(error.cause, PolytritonError) else error from None
        except self._ray.exceptions.GetTimeoutError:
            raise WorkerLost(f"did not answer within {timeout:.0f} s: has its machine free CPUs and memory?") from None
        except self._ray.exceptions.RayError as error:
            if "failed to import" in str(error):
                raise UsageError(
                    "a machine of the Ray cluster cannot import polytriton", "install the same version of polytriton on every machine"
                ) from None
            raise WorkerLost(f"is gone: {' '.join(str(error).split())[:200]}") from None


class RayWorker(RayActor):
    """One that answers queries, bound to its machine."""

    def __init__(self, ray: Any, shipping: Shipping, node: str, hello: Hello, resources: dict[str, float]) -> None:
        super().__init__(ray)
        self._shipping, self._node, self._resources = shipping, node, resources
        self._hello = msgspec.msgpack.encode(hello)
        self._held: set[str] = set()

    def start(self) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._held = set()
        actor = self._begin(
            Actor, self._hello, num_cpus=self._resources["CPU"], num_gpus=self._resources["GPU"],
            scheduling_strategy=NodeAffinitySchedulingStrategy(self._node, soft=False),
        )  # fmt: skip
        failure = self._reply(actor.ready.remote(), START_SECONDS).failure
        if failure is not None:
            raise failure.error()

    def ask(self, task: Task) -> Reply:
        job = task.job
        if job.network not in self._held:
            freight = self._shipping.freight(job.network)
            self._get(self._actor.hold.remote(job.network, freight.digest, freight.files))
            self._held.add(job.network)
        return self._reply(self._actor.work.remote(msgspec.msgpack.encode(_with_text(job))))

    def _reply(self, reference: Any, timeout: float | None = None) -> Reply:
        return msgspec.msgpack.decode(self._get(reference, timeout), type=Reply)


def _with_text(job: Job) -> Job:
    """A property's file need not lie on the worker's machine."""
    query = job.query
    if query is None or not isinstance(query.subject, VnnlibFile):
        return job
    subject = msgspec.structs.replace(query.subject, text=load_text(Path(query.subject.path)))
    return msgspec.structs.replace(job, query=msgspec.structs.replace(query, subject=subject))


def reach(address: str) -> None:
    """Raises where nobody listens at HOST:PORT: Ray itself would go on trying for minutes."""
    host, sign, port = address.rpartition(":")
    if sign and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()


def connect(ray: Any, address: str | None) -> bool:
    """Joins the cluster; False where this process has done so already, and it is not ours to leave."""
    if ray.is_initialized():
        return False
    given: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    where = address or os.environ.get("RAY_ADDRESS")
    given |= {"address": where} if where else {"address": "local", "include_dashboard": False}
    try:
        reach(where or "local")
        ray.init(**given)
    except Exception as error:
        where = where or "this machine"
        raise UsageError(
            f"cannot join the Ray cluster at {where}: {' '.join(str(error).split())[:200]}",
            "start one with `ray start --head`, check --address, and use the same versions of Python and Ray everywhere",
        ) from error
    return True


class Cluster:
    """The engine: connects, divides every machine among workers, and leaves the cluster as it was."""

    def __init__(self, settings: Settings, *, queries: int, workers: int | None, threads: int | None, address: str | None) -> None:
        self._ray = find_ray()
        self._mine = connect(self._ray, address)
        try:
            made = list(self._workers(settings, queries, workers, threads))
        except BaseException:
            self._leave()
            raise
        self.workers = made
        self._spread = SpreadEngine(made, TRIES)

    def submit(self, task: Task) -> None:
        self._spread.submit(task)

    def events(self) -> Iterator[Event]:
        return self._spread.events()

    def close(self) -> None:
        self._spread.close()
        self._leave()

    def _leave(self) -> None:
        if self._mine:
            self._ray.shutdown()

    def _workers(self, settings: Settings, queries: int, workers: int | None, threads: int | None) -> Iterator[RayWorker]:
        nodes = [n for n in self._ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) >= 1]
        gpu = settings.engine["device"].startswith("cuda")
        if gpu:
            nodes = [n for n in nodes if n["Resources"].get("GPU", 0) >= 1]
        if not nodes:
            raise ResourceError(f"no machine of the Ray cluster has a {'GPU' if gpu else 'CPU'}", "add machines to the cluster")
        shipping = Shipping(self._ray)
        for node in nodes:
            has = node["Resources"]
            share = divide(
                cpus=int(has["CPU"]), memory=settings.engine["memory"], queries=-(-queries // len(nodes)), workers=workers, threads=threads,
                gpus=int(has.get("GPU", 0)) if gpu else 0,
            )  # fmt: skip
            yield from self._workers_on(node, share, settings, shipping)

    def _workers_on(self, node: dict[str, Any], share: Share, settings: Settings, shipping: Shipping) -> Iterator[RayWorker]:
        """Ray shows every worker the GPU that is its own, and no other; CPUs it only counts, in whole ones or parts of one."""
        each, gpu = node["Resources"]["CPU"] / share.workers, settings.engine["device"].startswith("cuda")
        resources = {"CPU": min(share.threads, int(each)) if each >= 1 else int(each * 1000) / 1000, "GPU": int(gpu)}
        hello = Hello(share.settings(settings, 0, "cuda" if gpu else settings.engine["device"]), share.threads)
        for _ in range(share.workers):
            yield RayWorker(self._ray, shipping, node["NodeID"], hello, resources)
