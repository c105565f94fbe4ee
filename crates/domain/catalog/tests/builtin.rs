//! The embedded catalog is valid, complete and agrees with itself.

use bedplate_catalog::*;
use bedplate_units::{Bandwidth, Bytes, FlopRate};

/// Everything the mission names must be there.
#[test]
fn every_named_accelerator_instance_fabric_and_storage_class_is_there() {
    let catalog = Catalog::builtin();
    for name in [
        "a100-40gb",
        "a100-80gb",
        "h100",
        "h200",
        "b200",
        "b300",
        "gb200",
        "gb300",
        "trainium1",
        "trainium2",
        "trainium3",
        "inferentia2",
    ] {
        catalog.accelerator(name).unwrap();
    }
    for name in [
        "p4d.24xlarge",
        "p4de.24xlarge",
        "p5.4xlarge",
        "p5.48xlarge",
        "p5e.48xlarge",
        "p5en.48xlarge",
        "p6-b200.48xlarge",
        "p6-b300.48xlarge",
        "p6e-gb200.36xlarge",
        "trn1.32xlarge",
        "trn1n.32xlarge",
        "trn2.48xlarge",
        "trn2u.48xlarge",
        "inf2.48xlarge",
    ] {
        catalog.instance(name).unwrap();
    }
    for name in ["u-p6e-gb200x36", "u-p6e-gb200x72"] {
        catalog.ultraserver(name).unwrap();
    }
    for name in ["nvlink3", "nvlink4", "nvlink5", "nvlink-c2c", "efa-v1", "efa-v2", "efa-v3", "efa-v4"] {
        catalog.fabric(name).unwrap();
    }
    for family in ["infiniband", "neuronlink"] {
        assert!(catalog.fabrics.iter().any(|fabric| fabric.family == family), "{family}");
    }
    for name in ["nvme-local", "s3-standard", "s3-express", "mountpoint-s3"] {
        catalog.storage_class(name).unwrap();
    }
    for family in ["ebs-", "fsx-lustre-"] {
        assert!(catalog.storage.iter().any(|class| class.name.starts_with(family)), "{family}");
    }
}

#[test]
fn figures_are_those_of_the_data_sheets() {
    let catalog = Catalog::builtin();
    let h100 = catalog.accelerator("h100").unwrap();
    assert_eq!(h100.memory, Bytes::gb(80.0));
    assert_eq!(h100.memory_bandwidth, Some(Bandwidth::gb_per_s(3350.0)));
    assert!(h100.peaks.bf16.unwrap() < FlopRate::tflops(1000.0), "dense, not sparse");
    assert_eq!(
        catalog.accelerator("trainium2").unwrap().memory,
        Bytes::gib(96.0),
        "not 512 GB, as one source says"
    );
    let p5 = catalog.instance("P5.48XLARGE").unwrap();
    assert_eq!(p5.scale_out_bandwidth, Some(Bandwidth::gb_per_s(400.0)));
    assert_eq!(p5.local_storage.as_ref().unwrap().capacity(), Bytes::tb(30.72));
    assert_eq!(
        catalog.fabric("nvlink4").unwrap().one_way_per_accelerator(),
        Some(Bandwidth::gb_per_s(450.0))
    );
    assert!(!catalog.storage_class("mountpoint-s3").unwrap().cannot.is_empty());
}

#[test]
fn totals_agree_with_their_parts() {
    let catalog = Catalog::builtin();
    for instance in &catalog.instances {
        let accelerator = catalog.accelerator_of(instance);
        let count = f64::from(instance.accelerators);
        if let Some(total) = instance.accelerator_memory {
            let ratio = total / (accelerator.memory * count);
            assert!(
                (0.9..1.1).contains(&ratio),
                "{}: {total} for {count} x {}",
                instance.name,
                accelerator.memory
            );
        }
        // AWS's NeuronLink totals do not add up from their parts; the entries say so.
        let fabric = accelerator.scale_up.as_ref().map(|name| catalog.fabric(name).unwrap());
        let fabric = fabric.filter(|fabric| fabric.family == "nvlink");
        let per_accelerator = fabric.and_then(|fabric| fabric.per_accelerator);
        if let (Some(total), Some(each)) = (instance.scale_up_bandwidth, per_accelerator) {
            let ratio = total / (each * count);
            assert!((0.95..1.05).contains(&ratio), "{}: {total} for {count} x {each}", instance.name);
        }
    }
}

#[test]
fn dense_peaks_grow_as_formats_narrow() {
    for accelerator in &Catalog::builtin().accelerators {
        let floats =
            [accelerator.peaks.fp32, accelerator.peaks.bf16, accelerator.peaks.fp8, accelerator.peaks.fp4];
        let known: Vec<FlopRate> = floats.into_iter().flatten().collect();
        assert!(known.is_sorted(), "{}: {known:?}", accelerator.name);
        assert!(!known.is_empty(), "{} has no peak", accelerator.name);
    }
}

#[test]
fn every_price_has_a_known_source_and_the_newest_one_is_found() {
    let catalog = Catalog::builtin();
    let mut priced = 0;
    for instance in &catalog.instances {
        for (_, purchase) in Purchase::ALL {
            for price in instance.prices.of(purchase) {
                assert!(catalog.reference(&price.source).is_some());
                let hourly = price.per_hour.hourly().get();
                assert!(hourly > 0.05 && hourly < 10_000.0, "{}: {price:?}", instance.name);
                priced += 1;
            }
        }
    }
    assert!(priced > 0);
    let price = |per_hour: &str, date: &str, region: &str| Price {
        per_hour: per_hour.parse().unwrap(),
        region: region.into(),
        date: date.into(),
        source: "x".into(),
        note: None,
    };
    let prices = Prices {
        on_demand: vec![
            price("$9", "2024-01", "a"),
            price("$5", "2025-01", "b"),
            price("$4", "2025-01", "c"),
        ],
        ..Prices::default()
    };
    let newest = |region| prices.newest(Purchase::OnDemand, region).map(|price| price.per_hour.to_string());
    assert_eq!(newest(None).as_deref(), Some("$4.00/h"));
    assert_eq!(newest(Some("a")).as_deref(), Some("$9.00/h"));
    assert_eq!(newest(Some("nowhere")), None);
    assert_eq!(prices.newest(Purchase::Spot, None), None);
}
