//! Calls that go on while a rank computes.

use bedplate_comm::Reduction;
use bedplate_kernels::Device;
use bedplate_layout::{Dimension, Layout, RankMap};

use crate::fixture::{TRANSPORTS, options, ranks};

#[test]
fn started_calls_come_in_order_and_give_their_buffers_back() {
    for transport in TRANSPORTS {
        ranks(4, &options(transport), |world| {
            let (device, group) = (Device::cpu(1), world.everyone().unwrap());
            let own = world.rank() as f32;
            let buffer = |value: f32, len: usize| {
                let mut buffer = world.shared::<f32>(&device, len).unwrap();
                device.write(buffer.view_mut(), &vec![value; len]);
                buffer
            };
            for len in [8, 5_000, 100_000] {
                let first = group.start_all_reduce(&device, buffer(own, len), Reduction::Sum).unwrap();
                let second =
                    group.start_all_gather(&device, buffer(own, len), device.zeros::<f32>(4 * len)).unwrap();
                let mut third = buffer(1.0, len);
                // Called here, after the two that were started.
                group.all_reduce(&device, third.view_mut(), Reduction::Sum).unwrap();
                let fourth = group
                    .start_reduce_scatter(&device, buffer(own, 4 * len), buffer(0.0, len), Reduction::Max)
                    .unwrap();
                let mut found = vec![0.0; len];
                device.read(third.view(), &mut found);
                assert!(found.iter().all(|number| *number == 4.0));
                let (sum, outcome) = first.wait();
                outcome.unwrap();
                device.read(sum.view(), &mut found);
                assert!(found.iter().all(|number| *number == 6.0));
                let ((_, all), outcome) = second.wait();
                outcome.unwrap();
                let mut gathered = vec![0.0; 4 * len];
                device.read(all.view(), &mut gathered);
                assert!(gathered.iter().enumerate().all(|(index, number)| *number == (index / len) as f32));
                let ((_, most), outcome) = fourth.wait();
                outcome.unwrap();
                device.read(most.view(), &mut found);
                assert!(found.iter().all(|number| *number == 3.0));
            }
            // Forgotten calls are carried out all the same.
            drop(group.start_all_reduce(&device, buffer(own, 1_000), Reduction::Sum).unwrap());
            group.barrier().unwrap();
        });
    }
}

#[test]
fn groups_follow_the_dimensions_of_a_layout() {
    let layout = Layout { tensor: 2, data: 2, pipeline: 2, ..Layout::default() };
    let map = RankMap::new(&layout).unwrap();
    for transport in TRANSPORTS {
        ranks(8, &options(transport), |world| {
            let device = Device::cpu(1);
            for dimension in [Dimension::Tensor, Dimension::Data, Dimension::Pipeline] {
                let group = world.along(&map, dimension).unwrap();
                let expected: Vec<u32> = map.group(dimension, world.rank()).ranks().collect();
                assert_eq!(group.ranks(), expected);
                let mut elements = device.zeros::<u32>(1);
                device.write(elements.view_mut(), &[world.rank()]);
                group.all_reduce(&device, elements.view_mut(), Reduction::Sum).unwrap();
                let mut sum = [0];
                device.read(elements.view(), &mut sum);
                assert_eq!(sum[0], expected.iter().sum::<u32>());
            }
        });
    }
}
