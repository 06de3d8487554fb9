"""task=check: resolve, validate, build, and print what a run would cost; nothing is trained."""

from bearings.tasks.house import House
from bearings.tasks.run_directory import RunDirectory
from bearings.tasks.tables import facts, print_facts


class Check:
    """Build everything that the run would need, and exit."""

    def __call__(self, house: House) -> None:
        run = RunDirectory.of(house.config)
        store = house.store()
        model = house.model_in_place(store.manifest["vocabulary"], training=False)
        memory = house.step_memory(model.transformer)
        lines = facts(house, store, model, memory, house.cuda_graphs(model.transformer, memory))
        steps = sorted({0, min(model.warmup_steps, model.steps - 1), model.steps // 2, model.steps - 1})
        lines["schedule"] = ", ".join(f"{model.learning_rate_at(step):.3g} at step {step}" for step in steps)
        state = "finished" if run.manifest.get("finished") else "begun" if run.last.exists() else "not begun"
        lines["run"] = f"{run.path}, {state}"
        print_facts(house, lines)
        house.console.print("the configuration is sound")
