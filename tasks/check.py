"""task=check: resolve, validate, build, and print what a run would cost; nothing is trained."""

from bearings.lightning_modules.schedule import learning_rate_factor
from bearings.tasks.house import House
from bearings.tasks.run_directory import RunDirectory
from bearings.tasks.tables import facts, print_facts


class Check:
    """Build everything that the run would need, and exit."""

    def __call__(self, house: House) -> None:
        run = RunDirectory.of(house.config)
        store = house.store()
        lines = facts(house, store, house.transformer(store.manifest["vocabulary"]).to(house.settings.device))
        optimizer, steps = house.config["optimizer"], house.settings.steps
        rates = {
            step: optimizer["learning_rate"]
            * learning_rate_factor(
                step, steps, optimizer["warmup_steps"], optimizer["schedule"], optimizer["final_fraction"]
            )
            for step in sorted({0, min(optimizer["warmup_steps"], steps - 1), steps // 2, steps - 1})
        }
        lines["schedule"] = ", ".join(f"{rate:.3g} at step {step}" for step, rate in rates.items())
        state = "finished" if run.manifest.get("finished") else "begun" if run.last.exists() else "not begun"
        lines["run"] = f"{run.path}, {state}"
        print_facts(house, lines)
        house.console.print("the configuration is sound")
