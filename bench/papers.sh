#!/bin/sh
# All tables of the papers, one after another, as docs/results.md has them. The same command goes on where it stopped:
# finished cells are kept. Cells that need a GPU or days of a processor come last, and only when asked for.
#
#   FEDRAY_DATA=... sh bench/papers.sh [--all] [OUT]     # OUT: runs/papers
#   JOBS=2 sh bench/papers.sh                            # two cells at a time
set -eu
cd "$(dirname "$0")/.."
more=no
if [ "${1:-}" = --all ]; then more=yes; shift; fi
out=${1:-runs/papers}
export OMP_NUM_THREADS=1

# seconds of one core, about: measured ones are in docs/results
hours="fedag_table2 fedag_references fedag_fig2_cubic fedag_fig3 fed_ensemble_table1 fed_ensemble_table1_bias fed_ensemble_fig2
       fed_ensemble_printers shefl_learning_rate_fmnist shefl_rounds_fmnist fed_ensemble_table2_mnist_proxy
       stacking_table4_readings stacking_table5_readings stacking_table4_mnist fed_ensemble_table3_femnist fed_ensemble_table2_shakespeare fedag_table2_protein fed_ensemble_fig6
       ifca_rotated_mnist"
days="shefl_fig1_fmnist shefl_fig1_mnist shefl_table1a_fmnist shefl_table1a_mnist shefl_table1b_fmnist fed_ensemble_table2_mnist
      fed_ensemble_table4 fed_ensemble_table5 fed_ensemble_table6 fed_ensemble_table7 fed_ensemble_fig6_cifar10
      fed_ensemble_table2_cifar10 fed_ensemble_table2_cifar100 shefl_table1a_cifar10 shefl_table1a_cifar100 shefl_table1a_svhn
      shefl_fig1_cifar10 shefl_fig1_cifar100 shefl_fig1_svhn stacking_table4_mnist_deep stacking_table5_cifar10"

run() {
    for name in $1; do
        fedray table "scenarios/papers/$name.yaml" --jobs "${JOBS:-1}" --out "$out/$name" || failed="${failed:-} $name"
    done
}

run "$hours"
if [ $more = yes ]; then run "$days"; fi
if [ -n "${failed:-}" ]; then echo "these tables have cells that failed:$failed" >&2; exit 1; fi
