//! Memory of devices: kinds of it, and what keeps two address spaces apart.

use std::io::Write;

use crate::Device;

#[test]
fn numbers_that_are_written_are_read_again() {
    for device in [Device::cpu(1), Device::apart(1)] {
        let mut buffer = device.zeros::<f32>(1_000_000);
        device.write(buffer.range_mut(10..13), &[1.0, 2.0, 3.0]);
        let mut read = [7.0; 5];
        device.read(buffer.range(9..14), &mut read);
        assert_eq!(read, [0.0, 1.0, 2.0, 3.0, 0.0]);
        let (left, right) = buffer.view_mut().split_at(12);
        assert_eq!((left.len(), device.sum(right.view())), (12, 3.0));
    }
}

#[test]
fn memory_can_be_reserved_that_is_larger_than_the_machine_has() {
    for device in [Device::cpu(1), Device::apart(1)] {
        let mut buffer = device.reserve::<f32>(1 << 34).unwrap();
        device.write(buffer.range_mut((1 << 33) + 5..(1 << 33) + 7), &[1.0, 2.0]);
        let mut read = [7.0; 4];
        device.read(buffer.range((1 << 33) + 4..(1 << 33) + 8), &mut read);
        assert_eq!(read, [0.0, 1.0, 2.0, 0.0]);
    }
}

#[test]
fn numbers_are_bytes_to_transports() {
    let device = Device::apart(1);
    let mut elements = device.zeros::<f32>(3);
    let mut bytes = [0; 4];
    device.write(elements.view_mut(), &[0.0, 1.5, 0.0]);
    device.read(elements.view().bytes().range(4..8), &mut bytes);
    assert_eq!(bytes, 1.5f32.to_ne_bytes());
    device.write(elements.view_mut().bytes().range(8..12), &bytes);
    let mut read = [0.0; 3];
    device.read(elements.view(), &mut read);
    assert_eq!(read, [0.0, 1.5, 1.5]);
}

#[test]
#[should_panic(expected = "this view belongs to another device")]
fn a_view_of_another_device_is_refused() {
    let (host, apart) = (Device::cpu(1), Device::apart(1));
    let mut here = host.zeros::<f32>(4);
    host.copy(apart.zeros(4).view(), here.view_mut());
}

#[test]
fn a_device_for_tests_counts_and_has_addresses_that_only_it_can_follow() {
    let device = Device::apart(1);
    let mut buffer = device.zeros::<u32>(100);
    assert!(buffer.view().address > 1 << 62);
    device.write(buffer.view_mut(), &[1; 100]);
    device.read(buffer.view(), &mut [0; 100]);
    let traffic = device.traffic();
    assert_eq!((traffic.bytes, traffic.writes, traffic.reads), (400, 1, 1));
    drop(buffer);
    assert_eq!(device.traffic().bytes, 0);
    // The allocator hands the same memory out again, which must not show what it held.
    assert_eq!(device.first_non_finite(device.zeros::<f32>(100).view()), None);
}

#[test]
#[expect(unsafe_code, reason = "maps memory twice, and uses it in turn")]
fn shareable_memory_is_seen_by_all_that_map_its_descriptor() {
    let (device, peer) = (Device::cpu(1), Device::apart(1));
    let mut here = device.shareable::<f32>(5000).expect("the system shares memory");
    let descriptor = here.descriptor().expect("shareable memory has one");
    let descriptor = descriptor.try_clone_to_owned().expect("a descriptor is free");
    // SAFETY: one thread uses both mappings, one after the other.
    let there = unsafe { peer.map_shared::<f32>(descriptor, 5000) }.expect("it is that long");
    device.fill(here.range_mut(100..200), 2.0);
    assert_eq!(peer.sum_of_squares(there.view()), 400.0);
    assert!(device.zeros::<f32>(1).descriptor().is_none());
    drop(here);
    assert_eq!(peer.sum(there.view()), 200.0);
    let descriptor = there.descriptor().expect("it can go on to the next").try_clone_to_owned();
    // SAFETY: as above.
    let longer = unsafe { peer.map_shared::<f32>(descriptor.expect("a descriptor is free"), 5001) };
    assert!(longer.is_err());
}

#[test]
#[expect(unsafe_code, reason = "maps a file that no other process knows")]
fn a_mapped_file_gives_views_of_what_it_holds() {
    let path = std::env::temp_dir().join(format!("bedplate-kernels-{}", std::process::id()));
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .expect("there is a place for temporary files");
    std::fs::remove_file(&path).expect("it was made above");
    file.write_all(&7u64.to_le_bytes()).and_then(|()| file.write_all(&1.5f32.to_le_bytes())).expect("room");
    for device in [Device::cpu(1), Device::apart(1)] {
        // SAFETY: the file has no name any more, and this test does not write to it again.
        let mapped = unsafe { device.map_file(&file) }.expect("it is a file");
        let view = mapped.view::<f32>(8, 1).expect("it lies in the file");
        assert_eq!((mapped.bytes(), device.sum(view)), (12, 1.5));
        assert!(mapped.view::<f32>(6, 1).is_none() && mapped.view::<f32>(8, 2).is_none());
    }
}
