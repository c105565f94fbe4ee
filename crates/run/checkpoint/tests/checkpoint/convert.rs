//! To Hugging Face's folders and back, and from the format of earlier releases.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bedplate_checkpoint::{Checkpoint, FolderKind, Shards, from_hugging_face, from_old, to_hugging_face};
use bedplate_diag::{Diagnostic, Source};
use bedplate_network::{Architecture, SafetensorsFile, Tensor, TensorFormat, tables, write_tensors};
use serde_json::json;

use crate::place::{Place, number};

const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 96, "max_position_embeddings": 64,
    "tie_word_embeddings": false}"#;
const GPT2: &str =
    r#"{"model_type": "gpt2", "n_embd": 16, "n_head": 4, "n_layer": 1, "vocab_size": 24, "n_positions": 8}"#;

fn tensors(config: &str) -> Vec<Tensor> {
    let architecture = Architecture::from_config(Source::new("config.json", config)).unwrap();
    tables(&architecture).unwrap().into_iter().flat_map(|block| block.tensors).collect()
}

/// The numbers of a tensor as files have it; finite.
fn values(tensor: &Tensor) -> Vec<f32> {
    let finite = |place| f32::from_bits(number(&tensor.name, place, 0, 1).to_bits() & 0x3fff_0000);
    (0..tensor.shape.iter().product()).map(finite).collect()
}

#[test]
fn a_folder_of_safetensors_comes_back_as_it_was_in_files_of_a_given_size() {
    for config in [LLAMA, GPT2] {
        let place = Place::new("hugging-face");
        let (given, back) = (place.0.join("given"), place.0.join("back"));
        fs::create_dir_all(&given).unwrap();
        fs::write(given.join("config.json"), config).unwrap();
        let tensors = tensors(config);
        let listed: Vec<_> = tensors
            .iter()
            .map(|tensor| (tensor.name.clone(), tensor.shape.clone(), values(tensor)))
            .collect();
        write_tensors(&given.join("model.safetensors"), TensorFormat::F32, &BTreeMap::new(), &listed)
            .unwrap();
        assert_eq!(FolderKind::of(&given), Some(FolderKind::HuggingFace));

        let path = place.0.join("checkpoint");
        from_hugging_face(&given, &path).unwrap();
        assert_eq!(FolderKind::of(&path), Some(FolderKind::Checkpoint));
        let again = from_hugging_face(&given, &path).unwrap_err();
        assert_eq!(again.page().code, "checkpoint/unwritable", "nothing is overwritten");
        let checkpoint = Checkpoint::open(&path.to_string_lossy()).unwrap();
        checkpoint.verify().unwrap();

        let files =
            to_hugging_face(&checkpoint, &back, Shards { format: TensorFormat::F32, bytes: 6_000 }).unwrap();
        assert!(files.len() > 2, "{files:?}");
        assert_eq!(FolderKind::of(&back), Some(FolderKind::HuggingFace));
        let index: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(back.join("model.safetensors.index.json")).unwrap())
                .unwrap();
        for tensor in &tensors {
            let file = index["weight_map"][&tensor.name].as_str().unwrap();
            let file = SafetensorsFile::open(&back.join(file)).unwrap();
            assert_eq!(file.tensors()[&tensor.name].shape, tensor.shape);
            assert!(file.read(&tensor.name).unwrap().unwrap() == values(tensor), "{}", tensor.name);
        }
        let one = to_hugging_face(
            &checkpoint,
            &place.0.join("one"),
            Shards { format: TensorFormat::Bf16, ..Shards::default() },
        )
        .unwrap();
        assert_eq!(one, ["model.safetensors"]);
        assert!(fs::read_to_string(place.0.join("one/config.json")).unwrap().contains("bfloat16"));
    }
}

#[test]
fn weights_of_8_bits_become_plain_ones_and_no_longer_say_that_they_are_quantised() {
    let place = Place::new("fp8");
    let given = reference("llama_fp8");
    from_hugging_face(&given, &place.0.join("checkpoint")).unwrap();
    let checkpoint = Checkpoint::open(&place.0.join("checkpoint").to_string_lossy()).unwrap();
    let back = place.0.join("back");
    to_hugging_face(&checkpoint, &back, Shards { format: TensorFormat::F32, ..Shards::default() }).unwrap();
    let config = |folder: &Path| fs::read_to_string(folder.join("config.json")).unwrap();
    assert!(config(&given).contains("quantization_config") && !config(&back).contains("quantization_config"));
    let file = SafetensorsFile::open(&back.join("model.safetensors")).unwrap();
    assert!(file.tensors().keys().all(|name| !name.contains("scale")), "{:?}", file.tensors().keys());
}

/// A tiny model of the tests of `network`.
fn reference(name: &str) -> PathBuf {
    bedplate_testkit::root().join("crates/run/network/tests/reference").join(name)
}

#[test]
fn a_checkpoint_of_an_earlier_release_is_rewritten() {
    let place = Place::new("from-old");
    let old = place.0.join("old");
    fs::create_dir_all(&old).unwrap();
    let architecture = Architecture::from_config(Source::new("config.json", LLAMA)).unwrap();
    let blocks = tables(&architecture).unwrap();
    let mut flat = Vec::new();
    for part in ["weights", "first", "second"] {
        for (index, block) in blocks.iter().enumerate() {
            let values: Vec<f32> = (0..block.len).map(|place| number(part, index, place, 1)).collect();
            flat.push((format!("{part}.{index}"), vec![block.len], values));
        }
    }
    write_tensors(&old.join("state.safetensors"), TensorFormat::F32, &BTreeMap::new(), &flat).unwrap();
    let config: serde_json::Map<String, serde_json::Value> = serde_json::from_str(LLAMA).unwrap();
    let settings: serde_json::Map<_, _> =
        config.into_iter().map(|(key, value)| (format!("model.config: {key}"), value)).collect();
    let facts = json!({"version": 2, "step": 12, "samples": 48, "settings": settings});
    fs::write(old.join("state.json"), facts.to_string()).unwrap();
    assert_eq!(FolderKind::of(&old), Some(FolderKind::Old));
    from_old(&old, &place.0.join("new")).unwrap();
    let checkpoint = Checkpoint::open(&place.0.join("new").to_string_lossy()).unwrap();
    assert_eq!((checkpoint.facts().step, checkpoint.facts().samples), (12, 48));
    for (index, block) in blocks.iter().enumerate() {
        for tensor in &block.tensors {
            let found = checkpoint.read(&format!("second/{}", tensor.name)).unwrap();
            let expected = tensor.range.clone().map(|place| number("second", index, place, 1));
            assert!(
                found.iter().zip(expected).all(|(one, other)| one.to_bits() == other.to_bits()),
                "{}",
                tensor.name
            );
        }
    }
}
