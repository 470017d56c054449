#!/bin/sh
# The tables of the papers, one after another. The same command goes on where it stopped: finished cells are kept.
#
#   FEDRAY_DATA=... sh bench/papers.sh [OUT]             # the small tables: eight hours of a core. OUT: runs/papers
#   FEDRAY_DATA=... sh bench/papers.sh --measured [OUT]  # and every other table of scenarios/papers, at the size
#                                                                that it has in docs/results: 87 hours in all
#   FEDRAY_DATA=... sh bench/papers.sh --all [OUT]       # and all files as they are: days of a core, or a GPU
#   JOBS=2 sh bench/papers.sh                            # two cells at a time
set -euf
cd "$(dirname "$0")/.."
more=
case "${1:-}" in --measured | --all) more=$1; shift ;; esac
out=${1:-runs/papers}
export OMP_NUM_THREADS=1

table() { # a folder below OUT, a file, and what `fedray table` gets beside them
    folder=$1 file=$2
    shift 2
    fedray table "scenarios/papers/$file.yaml" "$@" --jobs "${JOBS:-1}" --out "$out/$folder" || failed="${failed:-} $folder"
}

# Minutes of a core, in this order: 12, 2, 4, 1, 1, 2, 2, 1, 3, 15, 115, 140, 7, 18, 26, 11, 18, 2, 14, 14, 9, 3, 18, 14, 7, 6, 1.
small="fedag_table2 fedag_asynchronous fedag_references fedag_fig2_cubic fedag_fig3 fed_ensemble_table1 fed_ensemble_table1_bias
       fed_ensemble_fig2 fed_ensemble_printers shefl_learning_rate_fmnist shefl_rounds_fmnist fed_ensemble_table2_mnist_proxy
       stacking_table4_readings stacking_table5_readings stacking_table4_mnist fed_ensemble_table3_femnist fed_ensemble_table2_shakespeare fedag_table2_protein fed_ensemble_fig6
       ifca_rotated_mnist pfedbayes_mnist dsvgd_kin8nm dsvgd_mnist pvi_mnist ivon_admm_rates_fmnist ivon_admm_fmnist stacking_regression"
for name in $small; do table "$name" "$name"; done

if [ -n "$more" ]; then # the numbers behind a line: minutes of a core that it took, on processors of different speed
    cnn="model.channels=[10,20] model.hidden=[50] replicates=3 runtime=inline"
    table shefl_fig1 shefl_fig1_fmnist $cnn --cells 'dirichlet_*,iid_fedavg,iid_fed_ensemble,iid_shefl'   # 238
    table ifca_300 ifca_rotated_mnist rounds=300 participation.per_round=2400 seed=2 evaluate.every=25 runtime=inline \
        --cells ifca,global                                                                   # 79
    table shefl_networks shefl_networks_fmnist --cells fed_ensemble_code,lenet,ours,fedavg_paper   # 42
    table shefl_512 shefl_table1a_fmnist model.hidden=[512] replicates=1 runtime=inline \
        --cells dirichlet_fedavg,dirichlet_fed_ensemble                                       # 36
    table shefl_path shefl_table1a_fmnist $cnn --cells 'path_*'                               # 93
    table shefl_mnist shefl_table1a_mnist $cnn                                                # 460
    table shefl_mnist_wide shefl_table1a_mnist replicates=3 rounds=10 runtime=inline \
        --cells 'dirichlet_*'                                                                 # 90
    table shefl_mnist_wide_100 shefl_table1a_mnist replicates=3 runtime=inline                # 1,140
    table shefl_step_0.1 shefl_table1a_fmnist $cnn local.lr=0.1 \
        --cells dirichlet_fedavg,dirichlet_fed_ensemble                                       # 15; dirichlet_shefl diverges
    table shefl_step_0.05 shefl_table1a_fmnist $cnn local.lr=0.05 \
        --cells dirichlet_fedavg,dirichlet_fed_ensemble,dirichlet_shefl                       # 36
    table shefl_table1b shefl_table1b_fmnist $cnn rounds=30                                   # 156
    table shefl_wide shefl_table1a_fmnist replicates=3 runtime=inline              # 770
    table shefl_cifar10 shefl_table1a_cifar10 model.width=0.25 data.limit=10000 clients.number=20 \
        clients.tiers.hpc.number=10 clients.tiers.lpc.number=10 local.epochs=2 rounds=12 evaluate.every=4 replicates=1 \
        runtime=inline --cells dirichlet_fedavg,dirichlet_fed_ensemble,dirichlet_shefl        # 48
    table fedag_asynchronous_constant fedag_asynchronous participation.staleness=constant \
        --cells '*_goal_10,boston_goal_10_long,concrete_goal_10_long,yacht_goal_10_long'      # 2
    table table2_mnist fed_ensemble_table2_mnist rounds=100                                   # 312
    table table2_mnist_1 fed_ensemble_table2_mnist rounds=100 seed=1 --cells '*_fedavg,*_fedprox,*_fed_ensemble' # 304
    table table2_mnist_2 fed_ensemble_table2_mnist rounds=100 seed=2 --cells '*_fedavg,*_fedprox,*_fed_ensemble' # 290
    table table2_mnist_dropout fed_ensemble_table2_mnist rounds=100 model.dropout=0.5 \
        predict.dropout_at_test=true --cells '*_fedavg,*_fed_ensemble'                        # 180
    table table2_mnist_proxy_400 fed_ensemble_table2_mnist_proxy rounds=400 \
        --cells at_test_iid_fedavg,at_test_iid_fed_ensemble                                   # 24
    table table2_mnist_proxy_400_noniid fed_ensemble_table2_mnist_proxy rounds=400 replicates=1 \
        --cells at_test_noniid_fedavg,at_test_noniid_fed_ensemble                             # 7
    table table2_mnist_proxy_140 fed_ensemble_table2_mnist_proxy rounds=140 \
        --cells at_test_noniid_fedavg,at_test_noniid_fed_ensemble                             # 6
    for s in 0 1 2; do table table5_iid_$s fed_ensemble_table5 --cells models_5,models_20,models_80 runtime=inline seed=$s; done # 315
    for s in 1 2; do table shakespeare_$s fed_ensemble_table2_shakespeare seed=$s; done         # 36
    proxy="rounds=100 replicates=3 local.lr=0.127 local.epochs=null local.steps=3 evaluate.every=50 runtime=inline"
    for n in 4 6 7; do table table$n fed_ensemble_table$n $proxy; done                        # 67, with the next
    table table5 fed_ensemble_table5 $proxy data.partition='{name: classes, classes: 2}'
    table stacking_table4_readings_all_rows stacking_table4_readings data.limit=null # 33
fi

large="shefl_fig1_fmnist shefl_table1a_fmnist shefl_table1a_mnist shefl_table1b_fmnist fed_ensemble_table2_mnist
       fed_ensemble_table4 fed_ensemble_table5 fed_ensemble_table6 fed_ensemble_table7 fed_ensemble_fig6_cifar10
       fed_ensemble_table2_cifar10 fed_ensemble_table2_cifar100 shefl_table1a_cifar10 shefl_table1b_cifar10
       shefl_table1a_cifar100 shefl_table1a_svhn stacking_table4_mnist_deep stacking_table5_cifar10"
if [ "$more" = --all ]; then
    for name in $large; do table "$name" "$name"; done
fi
if [ -n "${failed:-}" ]; then echo "these tables have cells that failed:$failed" >&2; exit 1; fi
