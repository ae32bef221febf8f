"""DBench from Python: train under four graphs, then read the summary, the ranking and the norms; a minute or less."""

from gossamer.bench import Experiment, run
from gossamer.bench.norm_parts import read_norms
from gossamer.bench.ranks import rank_analyses

if __name__ == "__main__":  # jobs are processes, and processes import this file
    experiment = Experiment(graphs=("complete", "exponential", "torus", "ring"), workers=16, epochs=5, seeds=2)
    results = run(experiment, "results", jobs=2)  # finished runs are read, not trained again
    for row in results.summary:
        accuracy, apart = row["accuracy"], row["consensus_distance_over_training"]
        print(f"{row['graph']:12} accuracy {accuracy:.1%}, consensus distance over the training {apart:.1e}")

    (analysis,) = rank_analyses(results.runs)  # one for each set of runs that differ in graph and seed only
    for ranking in analysis.rankings:
        if ranking.phase == "all":
            said = ranking.correlation
            print(f"{ranking.metric:25} Spearman {said.spearman:+.2f} (p = {said.spearman_p:.2f})", ranking.ranks)

    norms = read_norms(results.folder / results.runs[-1].run.folder)  # step, tensor, and its norm on each replica
    print(norms.num_rows, "rows of norms; the first:", norms["tensor"][0], norms["norms"][0].as_py()[:3], "…")
    print(results.report)
