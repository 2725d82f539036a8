"""Runs one real vLLM engine through the steps of a JSON file: ``scenario.py SPEC ANSWERS``.

A process of its own for each engine, so that each starts clean.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import statistics
import sys
import time
from pathlib import Path

PLANT = Path(os.environ["KVCONN_PLANT"])
CONNECTOR = {
    "kv_connector": "KVConnConnector",
    "kv_connector_module_path": "planted",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}
DEFAULTS = {
    "max_model_len": 2048, "dtype": "float32", "block_size": 32, "skip_tokenizer_init": True,
}  # fmt: skip
KINDS = [
    {}, {}, {}, {"skip_reading_prefix_cache": True}, {"prompt_logprobs": 0},
    {"extra_args": {"kv_transfer_params": {"skip_writing_prefix_cache": True}}},
]  # fmt: skip


def tokens(prompt):
    """``[[seed, length], ...]``: parts that are the same wherever they are named the same."""
    drawn = []
    for seed, length in prompt:
        generator = random.Random(seed)  # noqa: S311 - the same everywhere
        drawn += [generator.randrange(1024) for _ in range(length)]
    return drawn


class Scenario:
    def __init__(self, spec):
        from vllm import LLM  # noqa: PLC0415 - not before the environment is set

        transfer = {**CONNECTOR, "kv_connector_extra_config": spec["config"]}
        transfer |= spec.get("transfer", {})
        if spec.get("beside"):  # other connectors before and after ours
            children = [child or transfer for child in spec["beside"]]
            transfer = {
                **transfer,
                "kv_connector": "MultiConnector",
                "kv_connector_module_path": None,
                "kv_connector_extra_config": {"connectors": children},
                **spec.get("whole", {}),
            }
        with_cache = {"kv_transfer_config": transfer} if spec["config"] is not None else {}
        self.arguments = {
            "model": spec["model"], "enforce_eager": True, **with_cache,
            **DEFAULTS | spec.get("engine", {}),
        }  # fmt: skip
        self.llm = LLM(**self.arguments)

    def generate(self, prompts, max_tokens=8, salt=None, each=None, adapter=None, **flags):
        """``each``: more flags, of one prompt each; ``adapter``: name, number and path."""
        from vllm import SamplingParams  # noqa: PLC0415

        sampling = [
            SamplingParams(
                temperature=0, max_tokens=max_tokens, detokenize=False, ignore_eos=True,
                **flags, **more,
            )
            for more in each or [{}] * len(prompts)
        ]  # fmt: skip
        salted = {"cache_salt": salt} if salt else {}
        answers = self.llm.generate(
            [{"prompt_token_ids": tokens(prompt), **salted} for prompt in prompts],
            sampling,
            use_tqdm=False,
            **self._adapter(adapter),
        )
        return [
            {"cached": answer.num_cached_tokens, "tokens": list(answer.outputs[0].token_ids)}
            for answer in answers
        ]

    def _adapter(self, named):
        from vllm.lora.request import LoRARequest  # noqa: PLC0415

        return {"lora_request": LoRARequest(*named)} if named else {}

    def embed(self, prompts, task, **flags):
        """``task``: ``embed`` is one vector of a prompt, ``token_embed`` one of each token."""
        from vllm import PoolingParams  # noqa: PLC0415

        answers = self.llm.encode(
            [{"prompt_token_ids": tokens(prompt)} for prompt in prompts],
            PoolingParams(**flags),
            pooling_task=task,
            use_tqdm=False,
        )
        return [
            {
                "cached": answer.num_cached_tokens,
                "shape": list(answer.outputs.data.shape),
                "head": [round(x, 4) for x in answer.outputs.data.flatten()[-8:].tolist()],
            }
            for answer in answers
        ]

    def mixed(self, seed, count, batch=8):
        """``count`` requests of every kind over a few conversations; the tokens of each."""
        draw = random.Random(seed)  # noqa: S311 - the same everywhere
        answers = []
        while len(answers) < count:
            prompts, each = [], []
            for _ in range(min(batch, count - len(answers))):
                conversation, turns = draw.randrange(6), draw.randint(1, 6)
                prompt = [[100 * conversation + turn, 60] for turn in range(turns)]
                prompts.append([*prompt, [draw.randrange(1000, 9000), draw.randint(1, 40)]])
                each.append(draw.choice(KINDS))
            answers += [answer["tokens"] for answer in self.generate(prompts, each=each)]
            if draw.random() < 0.3:
                self.forget_local()
        return answers

    def timed(self, prompts):
        """Their answers, and how long all of them took."""
        self.forget_local()
        began = time.monotonic()
        answers = self.generate(prompts)
        return {"answers": answers, "seconds": time.monotonic() - began}

    def until_loaded(self, prompt, seconds=40.0):
        """Ask until the cache answers again; the last answer."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.forget_local()
            (answer,) = self.generate([prompt])
            if answer["cached"]:
                break
            self.counts(1.0)  # what it stored is there
        return answer

    def storm(self, seed, count):
        """Requests come, are aborted and preempted all the time; the answers of the others."""
        draw = random.Random(seed)  # noqa: S311 - the same everywhere
        engine, answers, left = self.llm.llm_engine, {}, [str(name) for name in range(count)]
        doomed = {name for name in left if draw.random() < 0.3}
        running = set()
        while left or engine.has_unfinished_requests():
            for name in [left.pop(0) for _ in range(min(len(left), draw.randint(0, 3)))]:
                self._add(name, random.Random(f"{seed} {name}"))  # noqa: S311
                running.add(name)
            gone = [name for name in sorted(doomed & running) if draw.random() < 0.2]
            engine.abort_request(gone)
            running.difference_update(gone)
            for answer in engine.step():
                if answer.finished and answer.request_id in running:
                    running.remove(answer.request_id)
                    answers[answer.request_id] = list(answer.outputs[0].token_ids)
            if draw.random() < 0.05:
                self.forget_local()
        return answers

    def _add(self, name, draw):
        from vllm import SamplingParams  # noqa: PLC0415

        conversation = 10 * draw.randrange(4)
        prompt = [[conversation + turn, 60] for turn in range(draw.randint(1, 7))]
        sampling = SamplingParams(
            temperature=0, max_tokens=draw.randint(1, 40), detokenize=False, ignore_eos=True,
            **draw.choice(KINDS),
        )  # fmt: skip
        asked = {"prompt_token_ids": tokens([*prompt, [int(name) + 1000, 20]])}
        self.llm.llm_engine.add_request(name, asked, sampling)

    def damage(self, place):
        """Flip a bit in the middle of each object of a disk store; how many there are."""
        objects = [
            path for path in Path(place).rglob("*") if path.is_file() and path.stat().st_size > 4096
        ]
        for path in objects:
            with path.open("r+b") as file:
                file.seek(path.stat().st_size // 2)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 1]))
        return len(objects)

    def remove(self, place):
        shutil.rmtree(place)

    def free(self, place):
        Path(place).unlink()

    def shut_down(self):
        """How long the engine takes to."""
        began = time.monotonic()
        self.llm.llm_engine.engine_core.shutdown()
        return time.monotonic() - began

    def forget_local(self):
        return self.llm.reset_prefix_cache()

    def forget_all(self):
        return self.llm.reset_prefix_cache(reset_connector=True)

    def fault(self, how):
        (PLANT / "fault").write_text(how)

    def counts(self, seconds=20.0):
        """Once nothing is in flight; in one process nobody but us steps an idle engine.

        What an engine of its own process has done is written down when it next answers a call.
        """
        ends = time.monotonic() + seconds
        core = getattr(self.llm.llm_engine.engine_core, "engine_core", None)
        while time.monotonic() < ends:
            if core is not None and (
                core.scheduler.connector.has_pending_push_work() or core.scheduler.has_requests()
            ):
                core.step()
            self.llm.llm_engine.is_sleeping()
            counts = json.loads((PLANT / "counts").read_text())
            if not counts["pending"] and not counts["tracked"]:
                break
            time.sleep(0.01)
        return counts

    def left(self):
        """The last that was counted, by whatever engine."""
        return json.loads((PLANT / "counts").read_text())

    def first_token(self, prompt, runs=7):
        """Median seconds to the first token, loaded and computed in turns."""
        taken = {"loaded": [], "computed": []}
        for _ in range(runs):
            for how, skip in (("loaded", False), ("computed", True)):
                self.forget_local()
                began = time.perf_counter()
                self.generate([prompt], max_tokens=1, skip_reading_prefix_cache=skip)
                taken[how].append(time.perf_counter() - began)
        return {how: statistics.median(times) for how, times in taken.items()}

    def abort_while_loading(self, prompt):
        """One request that is aborted after two steps, and one that is not."""
        from vllm import SamplingParams  # noqa: PLC0415

        engine = self.llm.llm_engine
        sampling = SamplingParams(temperature=0, max_tokens=8, detokenize=False, ignore_eos=True)
        for name in ("gone", "kept"):
            engine.add_request(name, {"prompt_token_ids": tokens(prompt)}, sampling)
        answers = []
        for step in range(10_000):
            if not engine.has_unfinished_requests():
                break
            if step == 2:
                engine.abort_request(["gone"])
            answers += [answer for answer in engine.step() if answer.finished]
        return [
            {"id": answer.request_id, "tokens": list(answer.outputs[0].token_ids)}
            for answer in answers
            if answer.request_id == "kept"
        ]

    def stream(self, sessions, max_tokens=8):
        """Each session's prompt comes in parts, all sessions at a time; the tokens of its answers.

        By an engine of its own, which is told what the other one is.
        """
        from vllm import AsyncEngineArgs  # noqa: PLC0415
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

        async def run():
            engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**self.arguments))
            try:
                answers = [self._session(engine, parts, max_tokens) for parts in sessions]
                together = await asyncio.gather(*answers)
                await engine.reset_prefix_cache()
                again = [await self._session(engine, sessions[0], max_tokens)]
                await asyncio.sleep(0.5)
                return together + again
            finally:
                engine.shutdown()

        return asyncio.run(run())

    async def _session(self, engine, parts, max_tokens):
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.engine.protocol import StreamingInput  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        sampling = SamplingParams(
            temperature=0, max_tokens=max_tokens, detokenize=False, ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        answered = asyncio.Semaphore(1)

        async def inputs():
            for part in parts:
                await answered.acquire()
                yield StreamingInput(
                    prompt={"type": "token", "prompt_token_ids": tokens(part)},
                    sampling_params=sampling,
                )
            await answered.acquire()

        heard = []
        name = f"session {random.random()}"  # noqa: S311 - no secret
        async for answer in engine.generate(inputs(), sampling, name):
            heard += answer.outputs[0].token_ids
            if len(heard) % max_tokens == 0:
                answered.release()
        return heard

    def flag_comes_late(self, prompt):
        """The connector's answers when one request id asks first without the flag, then with it."""
        from kvconn.types import Request  # noqa: PLC0415

        core = self.llm.llm_engine.engine_core.engine_core
        side, keys = core.scheduler.connector._scheduler, []
        tracked = side._tracked

        def listen(request):
            heard = tracked(request)
            keys[:] = heard.keys()
            return heard

        side._tracked = listen
        self.generate([prompt])
        side._tracked, scheduler = tracked, side.scheduler
        plain, skipping = Request("late"), Request("late", skip_reading_prefix_cache=True)
        answers = {"found": scheduler.lookup(plain, keys)}
        answers["leases"] = scheduler.collect_stats()["leases"]
        answers["found with the flag"] = scheduler.lookup(skipping, keys)
        answers["leases with the flag"] = scheduler.collect_stats()["leases"]
        answers["loads with the flag"] = scheduler.prepare_load(skipping, keys) is not None
        answers["refused"] = scheduler.collect_stats()["refused_loads"]
        scheduler.request_finished(skipping)
        return answers

    def free_blocks(self):
        pool = self.llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        return pool.get_num_free_blocks()


def main(spec_path, answers_path):
    spec = json.loads(Path(spec_path).read_text())
    scenario = Scenario(spec)
    answers = [getattr(scenario, do)(**how) for do, how in spec["steps"]]
    Path(answers_path).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
