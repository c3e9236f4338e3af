"""One prompt, one answer."""

from __future__ import annotations

from typing import Any

from pipelines.catalogue import method
from pipelines.records import Role, Stop, Trajectory


@method(paper="folklore", title="Single-turn rollout", checked="closed form")
class single_turn:
    """`group_size` completions per problem, drawn side by side from the prompt's shared prefix."""

    makes: tuple[str, ...] = ()
    """Columns that exist because of this rollout."""

    def run(self, asked: list[Any], context: Any) -> list[Trajectory]:
        """Trajectories of `asked` (problem, prompt ids, group id, hint), `context.group_size` each, in order."""
        prefixes = [[*one.prompt, *one.hint] for one in asked for _ in range(context.group_size)]
        done = context.sampler.extend(prefixes, context.sampling, context.generator, entropy=context.entropy)
        made = []
        for number, completion in enumerate(done):
            one = asked[number // context.group_size]
            head = len(one.prompt) + len(one.hint)
            given = [int(Role.PROMPT)] * len(one.prompt) + [int(Role.HINT)] * len(one.hint)
            made.append(
                Trajectory(
                    uid=one.problem.uid,
                    group=one.group,
                    tokens=[*one.prompt, *one.hint, *completion.tokens],
                    role=given + [int(Role.POLICY)] * len(completion.tokens),
                    logp_old=[0.0] * head + completion.logp,
                    entropy_old=None if completion.entropy is None else [0.0] * head + completion.entropy,
                    max_tokens=context.sampling.max_tokens,
                    stop=completion.stop if completion.tokens else Stop.ERROR,
                    version=context.version,
                    text=context.decode([*one.hint, *completion.tokens]),
                )
            )
        return made
