"""task=check: resolve, validate, build, and print what a run would cost; nothing is trained."""

from ..session.banner import facts, print_facts
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task


class Check(Task):
    """Build everything that the run would need, and exit."""

    def __call__(self, session: Session) -> None:
        run = RunDirectory.of(session.config)
        store = session.store()
        model = session.model_in_place(store.manifest["vocabulary"], training=False)
        memory = session.step_memory(model.transformer)
        lines = facts(session, store, model, memory, session.cuda_graphs(model.transformer, memory))
        steps = sorted({0, min(model.options.warmup_steps, model.steps - 1), model.steps // 2, model.steps - 1})
        lines["schedule"] = ", ".join(f"{model.learning_rate_at(step):.3g} at step {step}" for step in steps)
        state = "finished" if run.manifest.get("finished") else "begun" if run.last.exists() else "not begun"
        lines["run"] = f"{run.path}, {state}"
        print_facts(session, lines)
        session.console.print("the configuration is sound")
