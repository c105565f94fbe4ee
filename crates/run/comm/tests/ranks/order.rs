//! The order of sums: the same bits from run to run, and through shared memory the order of members.

use bedplate_comm::{Algorithm, AlgorithmTable, Operation, Reduction, Transport, WorldOptions};
use bedplate_kernels::{Bf16, Device};
use bedplate_random::Random;
use half::f16;

use crate::fixture::{TRANSPORTS, options, ranks};

fn noise(rank: u32, len: usize) -> Vec<f32> {
    let mut random = Random::new(u64::from(rank) + 7);
    (0..len).map(|_| (random.normal() * 10f64.powf(random.between(-4.0, 4.0))) as f32).collect()
}

fn sums(size: u32, options: &WorldOptions, len: usize, is_shared: bool) -> Vec<Vec<f32>> {
    ranks(size, options, |world| {
        let (device, group) = (Device::cpu(1), world.everyone().unwrap());
        let elements = noise(world.rank(), len);
        let mut found = vec![0.0; len];
        if is_shared {
            let mut buffer = world.shared(&device, len).unwrap();
            device.write(buffer.view_mut(), &elements);
            group.all_reduce(&device, buffer.view_mut(), Reduction::Sum).unwrap();
            device.read(buffer.view(), &mut found);
        } else {
            let mut buffer = device.zeros(len);
            device.write(buffer.view_mut(), &elements);
            group.all_reduce(&device, buffer.view_mut(), Reduction::Sum).unwrap();
            device.read(buffer.view(), &mut found);
        }
        group.barrier().unwrap();
        found
    })
}

fn bits(elements: &[f32]) -> Vec<u32> {
    elements.iter().map(|number| number.to_bits()).collect()
}

#[test]
fn every_algorithm_gives_the_same_bits_on_all_ranks_and_in_every_run() {
    let tables = Algorithm::over_channels(Operation::AllReduce)
        .iter()
        .map(|algorithm| AlgorithmTable::only(*algorithm));
    for table in tables.chain([AlgorithmTable::default()]) {
        for transport in TRANSPORTS {
            let options = WorldOptions { table: table.clone(), ..options(transport) };
            let first = sums(4, &options, 30_001, false);
            let second = sums(4, &options, 30_001, false);
            for rank in 0..4 {
                assert_eq!(bits(&first[0]), bits(&first[rank]), "{transport:?} {table:?}");
                assert_eq!(bits(&first[rank]), bits(&second[rank]), "{transport:?} {table:?}");
            }
        }
    }
}

#[test]
fn on_a_host_and_between_pairs_sums_are_in_the_order_of_ranks() {
    let len = 70_003;
    let all: Vec<Vec<f32>> = (0..5).map(|rank| noise(rank, len)).collect();
    let expected: Vec<f32> =
        (0..len).map(|index| all[1..].iter().fold(all[0][index], |sum, rank| sum + rank[index])).collect();
    let pairwise =
        WorldOptions { table: AlgorithmTable::only(Algorithm::Pairwise), ..options(Transport::Tcp) };
    for (options, is_shared) in
        [(options(Transport::Automatic), true), (options(Transport::Automatic), false), (pairwise, false)]
    {
        for found in sums(5, &options, len, is_shared) {
            assert_eq!(bits(&found), bits(&expected));
        }
    }
}

#[test]
fn sixteen_bit_numbers_are_rounded_once() {
    let expected = Bf16::from_f32(Bf16::from_f32(1.0).to_f32() + 3.0 * Bf16::from_f32(0.004).to_f32());
    for transport in [Transport::Automatic, Transport::Tcp] {
        let options = WorldOptions { table: AlgorithmTable::only(Algorithm::Pairwise), ..options(transport) };
        let found = ranks(4, &options, |world| {
            let (device, group) = (Device::cpu(1), world.everyone().unwrap());
            let mut elements = device.zeros::<Bf16>(40_000);
            let own = Bf16::from_f32(if world.rank() == 0 { 1.0 } else { 0.004 });
            device.write(elements.view_mut(), &vec![own; 40_000]);
            group.all_reduce(&device, elements.view_mut(), Reduction::Sum).unwrap();
            let mut found = vec![Bf16::default(); 40_000];
            device.read(elements.view(), &mut found);
            group.barrier().unwrap();
            found
        });
        assert!(found.iter().flatten().all(|number| *number == expected));
    }
}

#[test]
fn a_number_that_is_not_one_stays_visible_in_maximum_and_minimum() {
    for by in [Reduction::Max, Reduction::Min] {
        let found = ranks(3, &options(Transport::Automatic), |world| {
            let (device, group) = (Device::cpu(1), world.everyone().unwrap());
            let mut elements = device.zeros::<f32>(3);
            let mut own = [1.0; 3];
            own[world.rank() as usize] = f32::NAN;
            device.write(elements.view_mut(), &own);
            group.all_reduce(&device, elements.view_mut(), by).unwrap();
            device.read(elements.view(), &mut own);
            own
        });
        assert!(found.iter().flatten().all(|number| number.is_nan()), "{by}: {found:?}");
    }
}

#[test]
fn averages_of_narrow_numbers_do_not_overflow_on_the_way() {
    for transport in TRANSPORTS {
        ranks(4, &options(transport), |world| {
            let (device, group) = (Device::cpu(1), world.everyone().unwrap());
            for len in [5, 100_000] {
                let mut elements = device.zeros::<f16>(len);
                device.write(elements.view_mut(), &vec![f16::from_f32(60_000.0); len]);
                group.all_reduce(&device, elements.view_mut(), Reduction::Average).unwrap();
                let mut found = vec![f16::ZERO; len];
                device.read(elements.view(), &mut found);
                assert!(found.iter().all(|number| number.to_f32() == 60_000.0), "{}", found[0]);
            }
        });
    }
}
