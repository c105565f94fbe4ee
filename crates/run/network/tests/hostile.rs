//! Folders of strangers: what stands in place of a model's files is neither waited for nor believed.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use bedplate_diag::Source;
use bedplate_kernels::Device;
use bedplate_network::{
    Adapter, Architecture, INDEX_FILE, Network, NetworkError, SafetensorsFile, TensorFormat, WEIGHTS_FILE,
    Weights, load, write_tensors,
};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};

const MODEL: &str = "tests/reference/llama";

fn network(device: &Device) -> Network {
    let config = fs::read_to_string(Path::new(MODEL).join("config.json")).unwrap();
    Network::new(device, Architecture::from_config(Source::new("config.json", &config)).unwrap(), 32).unwrap()
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("bedplate-hostile-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A file that says of each tensor that it has as many rows as it takes to fill `bytes`, and is as long as that by its holes.
fn with_holes(path: &Path, tensors: &[(String, Vec<usize>)], bytes: u64) {
    let entry = |(name, shape): &(String, Vec<usize>)| {
        let rows = bytes as usize / 4 / shape[1..].iter().product::<usize>().max(1);
        let shape: Vec<usize> = std::iter::once(rows).chain(shape[1..].iter().copied()).collect();
        let size = shape.iter().product::<usize>() * 4;
        (name.clone(), json!({"dtype": "F32", "shape": shape, "data_offsets": [0, size]}))
    };
    let header = Value::Object(tensors.iter().map(entry).collect()).to_string();
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + bytes).unwrap();
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let device = Device::cpu(1);
    let (network, folder) = (network(&device), folder("fifo"));
    let mut weights: Weights<f32> = Weights::zeros(&device, &network);
    for name in [WEIGHTS_FILE, INDEX_FILE] {
        let path = folder.join(name);
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let error = load(&network, &device, &folder, &mut weights).unwrap_err();
        assert!(matches!(error, NetworkError::ReadWeights { .. }), "{name}: {error}");
        fs::remove_file(&path).unwrap();
    }
    mkfifo(&folder.join("adapter_config.json"), Mode::S_IRWXU).unwrap();
    assert!(matches!(Adapter::load(&network, &device, &folder), Err(NetworkError::ReadWeights { .. })));
    fs::remove_dir_all(folder).unwrap();
}

/// More than any machine has memory for: reading it would end the process.
const CLAIMED: u64 = 1 << 42;

#[test]
fn a_file_with_holes_does_not_fill_the_memory() {
    let device = Device::cpu(1);
    let (network, folder) = (network(&device), folder("holes"));
    let own = SafetensorsFile::open(&Path::new(MODEL).join(WEIGHTS_FILE)).unwrap();
    let mut tensors: Vec<(String, Vec<usize>)> =
        own.tensors().iter().map(|(name, tensor)| (name.clone(), tensor.shape.clone())).collect();
    with_holes(&folder.join(WEIGHTS_FILE), &tensors, CLAIMED);
    let mut weights: Weights<f32> = Weights::zeros(&device, &network);
    let error = load(&network, &device, &folder, &mut weights).unwrap_err();
    assert!(matches!(error, NetworkError::WrongShape { .. }), "{error}");

    fs::write(folder.join("adapter_config.json"), r#"{"r": 4, "lora_alpha": 8}"#).unwrap();
    tensors.retain(|(name, _)| name.ends_with("q_proj.weight"));
    let inputs = tensors[0].1[1];
    let module = format!("base_model.model.{}", tensors[0].0.trim_end_matches(".weight"));
    let parts = [
        (format!("{module}.lora_A.weight"), vec![4, inputs]),
        (format!("{module}.lora_B.weight"), vec![4, 4]),
    ];
    with_holes(&folder.join("adapter_model.safetensors"), &parts, CLAIMED);
    assert!(matches!(Adapter::load(&network, &device, &folder), Err(NetworkError::BrokenWeights { .. })));
    fs::remove_dir_all(folder).unwrap();
}

/// Added to the unchanged base such an adapter gives other answers, without a word.
#[test]
fn adapters_that_are_computed_otherwise_are_refused_by_name() {
    let device = Device::cpu(1);
    let (network, folder) = (network(&device), folder("adapters"));
    let own = SafetensorsFile::open(&Path::new(MODEL).join(WEIGHTS_FILE)).unwrap();
    let (name, base) = own.tensors().iter().find(|(name, _)| name.ends_with("q_proj.weight")).unwrap();
    let (module, [outputs, inputs]) = (name.trim_end_matches(".weight"), [base.shape[0], base.shape[1]]);
    let part = |part: &str, shape: [usize; 2]| {
        (format!("base_model.model.{module}.{part}.weight"), shape.to_vec(), vec![0.5; shape[0] * shape[1]])
    };
    let parts = [part("lora_A", [2, inputs]), part("lora_B", [outputs, 2])];
    write_tensors(&folder.join("adapter_model.safetensors"), TensorFormat::F32, &BTreeMap::new(), &parts)
        .unwrap();
    let config = json!({"r": 2, "lora_alpha": 8});
    let load = |key: &str, value: Value| {
        let mut config = config.clone();
        config[key] = value;
        fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
        Adapter::load(&network, &device, &folder).map(drop).map_err(|error| error.to_string())
    };
    for (key, value) in [
        ("init_lora_weights", json!("gaussian")),
        ("modules_to_save", json!([])),
        ("lora_bias", json!(false)),
    ] {
        assert_eq!(load(key, value), Ok(()), "{key}");
    }
    for (key, value) in [
        ("init_lora_weights", json!("pissa_niter_16")),
        ("init_lora_weights", json!("olora")),
        ("lora_bias", json!(true)),
        ("bias", json!("all")),
        ("alora_invocation_tokens", json!([1, 2])),
        ("rank_pattern", json!({"q_proj": 2})),
        ("modules_to_save", json!(["lm_head"])),
    ] {
        let error = load(key, value.clone()).unwrap_err();
        assert!(error.contains(key) || error.contains("changes the base"), "{key}: {error}");
    }
    fs::remove_dir_all(folder).unwrap();
}

/// One such number in the rows of a request would make all that follows it no number either.
#[test]
fn adapters_of_strangers_with_odd_numbers_or_shapes_are_refused() {
    let device = Device::cpu(1);
    let (network, folder) = (network(&device), folder("strange-adapters"));
    let own = SafetensorsFile::open(&Path::new(MODEL).join(WEIGHTS_FILE)).unwrap();
    let (name, base) = own.tensors().iter().find(|(name, _)| name.ends_with("q_proj.weight")).unwrap();
    let (module, [outputs, inputs]) = (name.trim_end_matches(".weight"), [base.shape[0], base.shape[1]]);
    let load = |config: &str, a: [usize; 2], b: [usize; 2], number: f32| {
        let part = |part: &str, shape: [usize; 2]| {
            let name = format!("base_model.model.{module}.{part}.weight");
            (name, shape.to_vec(), vec![number; shape[0] * shape[1]])
        };
        let path = folder.join("adapter_model.safetensors");
        let parts = [part("lora_A", a), part("lora_B", b)];
        write_tensors(&path, TensorFormat::F32, &BTreeMap::new(), &parts).unwrap();
        fs::write(folder.join("adapter_config.json"), config).unwrap();
        Adapter::load(&network, &device, &folder).map(drop).map_err(|error| error.to_string())
    };
    let plain = r#"{"r": 2, "lora_alpha": 8}"#;
    assert_eq!(load(plain, [2, inputs], [outputs, 2], 0.5), Ok(()));
    for (config, a, b, number, why) in [
        (plain, [2, inputs], [outputs, 2], f32::NAN, "not finite"),
        (plain, [2, inputs], [outputs, 2], f32::INFINITY, "not finite"),
        (r#"{"r": 2, "lora_alpha": 1e300}"#, [2, inputs], [outputs, 2], 0.5, "not finite"),
        (plain, [2, inputs + 1], [outputs, 2], 0.5, "does not fit"),
        (plain, [2, inputs], [outputs, 3], 0.5, "does not fit"),
        (plain, [0, inputs], [outputs, 0], 0.5, "does not fit"),
        (r#"{"r": 0, "lora_alpha": 8}"#, [2, inputs], [outputs, 2], 0.5, "rank"),
        (r#"{"r": "2", "lora_alpha": 8}"#, [2, inputs], [outputs, 2], 0.5, "rank"),
        (r#"{"r": 2}"#, [2, inputs], [outputs, 2], 0.5, "lora_alpha"),
        ("[", [2, inputs], [outputs, 2], 0.5, "JSON"),
        ("[]", [2, inputs], [outputs, 2], 0.5, "rank"),
    ] {
        let error = load(config, a, b, number).unwrap_err();
        assert!(error.contains(why), "{config} {a:?} {b:?} {number}: {error}");
    }
    fs::remove_dir_all(folder).unwrap();
}
