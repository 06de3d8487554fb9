"""Mutants of every kind of file that bearings reads, and what becomes of each.

    python -m tests.fuzz --count 10000 --seed 0 --jobs 2      the long form
    python -m tests.fuzz --count 300                          the short one
    python -m tests.fuzz --target export-weights --index 17   one mutant again; its files are kept

It needs what the tests need (`pip install -e ".[test]"`), and no data: the originals are made first, in some seconds.
A mutant is the same for the same seed, target and index, wherever it is made.

Each mutant changes one file of a small run, export, token store, study or data set, and reads it through a public
entry point. Its outcome is one of

    same      the figures of the original
    error     one line: a UserError, or the run is listed as a trouble of a report that still comes
    changed   other figures, where nothing pins the file
    fault     a traceback, a hang, more than 1 GB of memory above the original's, an error that is not one short line,
              code that ran, a write outside the mutant's folder, markup in a report, or a silent change of figures

Which figures are pinned:

- A token store, a checkpoint, a run's records and baselines, and an export are made by bearings, which can keep their
  digests. Any change of them must give the same figures or an error.
- `config.yaml` of a run is pinned by the copy in `manifest.json`, and the other way round. In a report, a run keeps its
  encoding, its seed and its figures, or is listed. task=evaluate gives the same figures, or an error.
- Training logs and measurements kept as text (`metrics.csv`, `mechanisms/`, `extrapolation/`) have digests in
  `manifest.json`, which half of that file's mutants lack: runs made before it held them are read too.
- A user's own data (MIDI, FASTA, text, a tokenizer.json, a study.yaml) is what the user gave: another file gives
  another result. A Parquet file must still yield as many rows as its footer promises.

Whoever rewrites a file together with every digest of it makes another valid file; no mutant does that.
"""
