//! Adapters of runs whose ranks have parts of the network: they are exported as one process would.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::place::{Place, assert_same};

/// All tensors of a file of safetensors in f32, in the order of their names.
fn numbers(path: &Path) -> Vec<(String, Vec<f32>)> {
    let bytes = fs::read(path).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    let of = |(name, tensor): (&String, &Value)| {
        let offset = |index: usize| tensor["data_offsets"][index].as_u64().unwrap() as usize;
        let numbers = data[offset(0)..offset(1)].as_chunks::<4>().0.iter();
        (name.clone(), numbers.map(|number| f32::from_le_bytes(*number)).collect())
    };
    let mut found: Vec<_> =
        header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__").map(of).collect();
    found.sort_by(|a: &(String, Vec<f32>), b| a.0.cmp(&b.0));
    found
}

#[test]
fn adapters_of_split_layouts_are_exported_as_those_of_one_process() {
    let place = Place::new("adapters");
    let set =
        ["--set", "adapter.rank=4", "--set", "optimizer.learning_rate=1e-2", "--set", "optimizer.warmup=0"];
    let alone = place.finish("alone", 12, &set);
    for layout in ["dp2.zero3", "tp2", "pp2"] {
        let mut more = set.to_vec();
        more.extend(["--ranks", "2", "--layout", layout]);
        assert_same(&alone, &place.finish(layout, 12, &more), 1e-5);
        for file in ["adapter/adapter_model.safetensors", "model/model.safetensors"] {
            let of = |output: &str| numbers(&place.0.join(output).join(file));
            let (expected, found) = (of("alone"), of(layout));
            assert_eq!(expected.len(), found.len(), "{layout}: {file}");
            for ((name, expected), (other, found)) in expected.iter().zip(&found) {
                assert_eq!((name, expected.len()), (other, found.len()), "{layout}: {file}");
                let off = expected.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off < 1e-4, "{layout}: {file}: {name} is off by {off}");
            }
        }
        let settings =
            |output: &str| fs::read(place.0.join(output).join("adapter/adapter_config.json")).unwrap();
        assert_eq!(settings("alone"), settings(layout));
    }
    let trained = numbers(&place.0.join("tp2/adapter/adapter_model.safetensors"));
    let is_trained = |(name, numbers): &(String, Vec<f32>)| {
        name.contains("lora_B") && numbers.iter().any(|number| *number != 0.0)
    };
    assert!(trained.iter().any(is_trained), "they have learned something");
}
