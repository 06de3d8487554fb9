"""task=check: check a configuration and print what the run would cost, without training."""

from ..lightning_modules.cost import training_time_text
from ..session.banner import banner_lines, print_lines
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task


class Check(Task):
    """Build the data, model and optimizer of a run, print its cost, and exit."""

    def __call__(self, session: Session) -> None:
        run = RunDirectory.of(session.config)
        store = session.store()
        model = session.model_in_place(store.manifest["vocabulary"], training=False)
        with session.settings.determinism():
            memory = session.step_memory(model.transformer)
            lines = banner_lines(session, store, model, memory, session.cuda_graphs(model.transformer, memory))
        tokens = model.steps * session.data.batch_size * session.data.length
        flops = model.transformer.training_flops_per_token(session.data.length) * tokens
        padded = "" if session.data.always_full else "at most "  # rows that are not full have fewer tokens
        lines["training time"] = padded + training_time_text(flops, session.settings.device)
        if model.steps:
            last = model.steps - 1
            steps = sorted({0, min(model.options.warmup_steps, last), model.steps // 2, last})
            lines["schedule"] = ", ".join(f"{model.learning_rate_at(step):.3g} at step {step}" for step in steps)
        state = "finished" if run.manifest.get("finished") else "started" if run.last.exists() else "not started"
        lines["run"] = f"{run.path} ({state})"
        print_lines(session, lines)
        session.console.print("The configuration is valid. Nothing was trained; leave out task=check to train.")
