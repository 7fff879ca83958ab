"""A run's model at a checkpoint, opened for inference: whole, or through the split."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from torso.cli.assembly import Assembly
from torso.cli.chosen import check_base
from torso.evaluation.model import CachedModel, LocalMiddle
from torso.model.stages import Body, Head, Tail
from torso.split.client.remote_inference import RemoteInference
from torso.split.client.servers import check_before_start
from torso.training.checkpoint import Checkpoint


@contextmanager
def opened_model(assembly: Assembly, checkpoint: Checkpoint | None) -> Iterator[CachedModel]:
    """The run's model at a checkpoint (None: without adapter's training), for inference."""
    assembly.source.check(assembly.own_tensors)
    if checkpoint is not None:
        check_base(assembly, checkpoint)
    head, tail = assembly.stage(Head, checkpoint), assembly.stage(Tail, checkpoint)
    if assembly.config.strategy != "split":
        body = LocalMiddle(assembly.stage(Body, checkpoint), assembly.cuts)
        yield CachedModel(head, body, tail, assembly.cuts, assembly.device)
        return
    step = checkpoint.step if checkpoint else 0
    state = checkpoint.select(checkpoint.names(assembly.cuts.body)) if checkpoint else {}
    with closing(assembly.transport()) as transport:
        check_before_start(transport, assembly.config.server, assembly.job_spec)
        with RemoteInference(
            assembly.job_spec,
            assembly.config.server,
            transport,
            step,
            state,
            assembly.config.patience_s,
            on_message=lambda text: print(f"torso: {text}", file=sys.stderr),
        ) as middle:
            yield CachedModel(head, middle, tail, assembly.cuts, assembly.device)
