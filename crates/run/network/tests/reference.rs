//! Logits, loss and every gradient of tiny models against Hugging Face transformers with the same weights.
//!
//! The tensors in `tests/reference` were made by `tests/reference/make`, which also holds them against two major versions of
//! transformers; `make.py` says which.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use std::fs;
use std::path::PathBuf;

use bedplate_diag::Source;
use bedplate_kernels::{Device, IGNORED, KvFormat, WeightFormat};
use bedplate_network::{
    Architecture, BatchTokens, KvPool, Network, NetworkError, PackedWeights, Recompute, RowAdapters,
    SafetensorsFile, ServingRoom, ServingShape, StepRows, Weights, Workspace, WorkspaceShape, load, save,
};
use serde_json::Value;

fn folder_of(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

struct Reference {
    folder: PathBuf,
    network: Network,
    /// Inputs and targets of the sequences, one after the other.
    tokens: Vec<u32>,
    targets: Vec<u32>,
    sequences: usize,
    /// Tokens of padding at the end of each sequence.
    padding: Vec<u32>,
    logits: Vec<f32>,
    loss: f64,
}

impl Reference {
    fn read(device: &Device, name: &str) -> Self {
        Self::at(device, folder_of(name), 32).unwrap()
    }

    /// Of a folder; an error where its model is not computed.
    fn at(device: &Device, folder: PathBuf, longest: usize) -> Result<Self, NetworkError> {
        let config = fs::read_to_string(folder.join("config.json")).unwrap();
        let architecture = Architecture::from_config(Source::new("config.json", &config))?;
        let expected: Value =
            serde_json::from_str(&fs::read_to_string(folder.join("expected.json")).unwrap()).unwrap();
        let rows: Vec<Vec<u32>> = serde_json::from_value(expected["tokens"].clone()).unwrap();
        let padding: Vec<u32> = serde_json::from_value(expected["padding"].clone()).unwrap_or_default();
        let targets = |(number, row): (usize, &Vec<u32>)| {
            let padding = padding.get(number).map_or(0, |padding| *padding as usize);
            // The successor of the last token before padding is padding too.
            let counted = row.len() - 1 - if padding > 0 { padding + 1 } else { 0 };
            let mut targets = row[1..].to_vec();
            targets[counted..].fill(IGNORED);
            targets
        };
        Ok(Self {
            network: Network::new(device, architecture, longest)?,
            tokens: rows.iter().flat_map(|row| row[..row.len() - 1].to_vec()).collect(),
            targets: rows.iter().enumerate().flat_map(targets).collect(),
            sequences: rows.len(),
            padding,
            logits: serde_json::from_value(expected["logits"].clone()).unwrap(),
            loss: expected["loss"].as_f64().unwrap(),
            folder,
        })
    }

    fn is_padding(&self, row: usize) -> bool {
        let sequence = self.tokens.len() / self.sequences;
        let padding = self.padding.get(row / sequence).map_or(0, |padding| *padding as usize);
        row % sequence + padding >= sequence
    }

    fn workspace(&self, device: &Device, recompute: Recompute) -> Workspace<f32> {
        let sequence = self.tokens.len() / self.sequences;
        let shape = WorkspaceShape { sequences: self.sequences, sequence, recompute, has_gradients: true };
        let mut workspace = Workspace::new(device, &self.network, shape);
        let positions: Vec<u32> = (0..self.tokens.len()).map(|row| (row % sequence) as u32).collect();
        workspace.room(0).load(
            device,
            BatchTokens {
                tokens: &self.tokens,
                targets: &self.targets,
                positions: &positions,
                first_keys: &vec![0; self.tokens.len()],
                padding: &self.padding,
            },
        );
        workspace
    }

    fn weights(&self, device: &Device) -> Weights<f32> {
        let mut weights = Weights::zeros(device, &self.network);
        let loaded = load(&self.network, device, &self.folder, &mut weights).unwrap();
        assert_eq!(loaded.unused, Vec::<String>::new());
        weights
    }
}

/// The largest difference, against the largest number.
fn difference(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(1e-12f32, |most, value| most.max(value.abs()));
    let apart = found.iter().zip(expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    f64::from(apart / largest)
}

/// On the processor, where memory lies apart, which a caller that goes past the device would not find, and on a GPU where there is one.
fn check(name: &str) {
    [Device::cpu(2), Device::apart(2)].iter().for_each(|device| check_on(device, name));
    match Device::cuda(0) {
        Ok(device) => {
            let config = fs::read_to_string(folder_of(name).join("config.json")).unwrap();
            let architecture = Architecture::from_config(Source::new("config.json", &config)).unwrap();
            match Network::new(&device, architecture, 32) {
                Ok(_) => check_on(&device, name),
                Err(error) => println!("REFUSED: {name} on a GPU: {error}"),
            }
        }
        Err(error) => println!("SKIPPED: {name} on a GPU: {error}"),
    }
}

fn check_on(device: &Device, name: &str) {
    let reference = Reference::read(device, name);
    let network = &reference.network;
    let weights = reference.weights(device);
    let mut apart = [logits_apart(&reference, device, &weights), 0.0];
    assert!(apart[0] < 1e-4, "{name}: logits differ by {:.1e}", apart[0]);
    check_answers(&reference, device);
    for recompute in [Recompute::None, Recompute::Cheap, Recompute::Full] {
        let mut workspace = reference.workspace(device, recompute);
        let mut gradients = Weights::zeros(device, network);
        let count = reference.targets.iter().filter(|target| **target != IGNORED).count() as f32;
        let room = &mut workspace.room(0);
        // Those with padding were made with the loss that balances experts.
        let balance = if reference.padding.is_empty() { 0.0 } else { 1.0 };
        let loss = network.learn(device, &weights, room, &mut gradients, 1.0 / count, balance);
        let loss = loss / f64::from(count);
        assert!(
            (loss - reference.loss).abs() < 1e-5 * reference.loss,
            "{name}: loss {loss}, {}",
            reference.loss
        );
        let (tensor, most) = gradients_apart(&reference, device, &gradients);
        assert!(most < 1e-4, "{tensor}: differs by {most:.1e}");
        apart[1] = most.max(apart[1]);
    }
    println!("{name}: logits differ by {:.1e} of the largest, gradients by {:.1e}", apart[0], apart[1]);
}

/// The same logits where sequences are computed in steps over keys and values in blocks: whole, in chunks and token by token.
fn check_answers(reference: &Reference, device: &Device) {
    const BLOCK: usize = 4;
    let (network, sequences) = (&reference.network, reference.sequences);
    let (sequence, vocab) =
        (reference.tokens.len() / sequences, reference.logits.len() / reference.tokens.len());
    let weights = PackedWeights::<f32>::load(network, device, &reference.folder, WeightFormat::F32).unwrap();
    let blocks = sequence.div_ceil(BLOCK);
    let rows = sequences * sequence;
    let shape =
        ServingShape { rows, sequences, table_entries: sequences * blocks, wanted: rows, adapter_rank: 0 };
    for chunk in [sequence, 3, 1] {
        let mut pool = KvPool::new(device, network, sequences * blocks, BLOCK, KvFormat::Stored).unwrap();
        let mut room = ServingRoom::new(device, network, shape);
        let mut logits = vec![0.0; reference.logits.len()];
        for first in (0..sequence).step_by(chunk) {
            let count = chunk.min(sequence - first);
            let here = |each: &dyn Fn(usize, usize) -> u32| -> Vec<u32> {
                (0..sequences)
                    .flat_map(|of| (first..first + count).map(move |at| (of, at)))
                    .map(|(of, at)| each(of, at))
                    .collect()
            };
            let used = (first + count).div_ceil(BLOCK);
            // Blocks of the sequences take turns, from the last to the first.
            let table = |of: usize| {
                (0..used).map(move |block| (sequences * blocks - 1 - block * sequences - of) as u32)
            };
            let starts = |each: usize| (0..=sequences).map(|of| (of * each) as u32).collect::<Vec<_>>();
            let step = StepRows {
                tokens: &here(&|of, at| reference.tokens[of * sequence + at]),
                positions: &here(&|_, at| at as u32),
                starts: &starts(count),
                contexts: &vec![first as u32; sequences],
                table_starts: &starts(used),
                tables: &(0..sequences).flat_map(table).collect::<Vec<_>>(),
                wanted: &(0..(sequences * count) as u32).collect::<Vec<_>>(),
            };
            network.answer(device, &weights, &mut pool, &step, RowAdapters::NONE, &mut room);
            for row in 0..sequences * count {
                let at = row / count * sequence + first + row % count;
                room.read_logits(device, row, &mut logits[at * vocab..(at + 1) * vocab]);
            }
        }
        let mut expected = reference.logits.clone();
        for row in (0..reference.tokens.len()).filter(|row| reference.is_padding(*row)) {
            let place = row * vocab..(row + 1) * vocab;
            expected[place.clone()].copy_from_slice(&logits[place]);
        }
        let apart = difference(&logits, &expected);
        assert!(
            apart < 1e-4,
            "{}: in chunks of {chunk}, logits differ by {apart}",
            reference.folder.display()
        );
    }
}

/// The difference of the logits.
fn logits_apart(reference: &Reference, device: &Device, weights: &Weights<f32>) -> f64 {
    let network = &reference.network;
    let mut workspace = reference.workspace(device, Recompute::None);
    let mut room = workspace.room(0);
    network.forward(device, weights, &mut room);
    let vocab = reference.logits.len() / reference.tokens.len();
    let mut logits = vec![0.0; reference.logits.len()];
    let mut expected = reference.logits.clone();
    for (row, logits) in logits.chunks_mut(vocab).enumerate() {
        network.logits(device, network.head_weights(weights), &mut room, row, logits);
        if reference.is_padding(row) {
            // Nothing follows from what padding computes.
            expected[row * vocab..(row + 1) * vocab].copy_from_slice(logits);
        }
    }
    difference(&logits, &expected)
}

/// The largest difference of a gradient, and its tensor.
fn gradients_apart(reference: &Reference, device: &Device, gradients: &Weights<f32>) -> (String, f64) {
    let file = SafetensorsFile::open(&reference.folder.join("gradients.safetensors")).unwrap();
    let (mut checked, mut most) = (0, (String::new(), 0.0f64));
    for (index, block) in reference.network.blocks().iter().enumerate() {
        for tensor in &block.tensors {
            let mut expected = file.read(&tensor.name).unwrap().unwrap_or_else(|| panic!("{}", tensor.name));
            expected = tensor.matrix_of(expected);
            let mut found = vec![0.0; tensor.range.len()];
            device.read(gradients.block(index).range(tensor.range.clone()), &mut found);
            let apart = difference(&found, &expected);
            checked += 1;
            // Not a number is the worst.
            if apart > most.1 || apart.is_nan() {
                most = (tensor.name.clone(), apart);
            }
        }
    }
    assert_eq!(checked, file.tensors().len(), "every gradient of the reference has its tensor");
    most
}

#[test]
fn llama_is_what_transformers_computes() {
    check("llama");
}

#[test]
fn qwen2_is_what_transformers_computes() {
    check("qwen2");
}

#[test]
fn qwen3_is_what_transformers_computes() {
    check("qwen3");
}

#[test]
fn mixtral_is_what_transformers_computes() {
    check("mixtral");
}

#[test]
fn qwen2_moe_is_what_transformers_computes() {
    check("qwen2_moe");
}

#[test]
fn qwen3_moe_is_what_transformers_computes() {
    check("qwen3_moe");
}

#[test]
fn gpt2_is_what_transformers_computes() {
    check("gpt2");
}

#[test]
fn scales_of_attention_are_those_of_transformers() {
    check("gpt2_scales");
}

#[test]
fn windows_are_those_of_transformers() {
    ["qwen2_windows", "qwen2_moe_windows", "qwen3_moe_windows"].into_iter().for_each(check);
}

#[test]
fn linear_rotary_positions_and_biases_are_those_of_transformers() {
    check("llama_linear");
}

#[test]
fn gemma_is_what_transformers_computes() {
    ["gemma", "gemma2", "gemma3"].into_iter().for_each(check);
}

#[test]
fn stretched_rotary_positions_are_those_of_transformers() {
    ["llama_yarn", "qwen3_yarn", "llama_dynamic", "phi3_longrope", "phi3_long"].into_iter().for_each(check);
}

#[test]
fn phi3_is_what_transformers_computes() {
    check("phi3");
}

#[test]
fn olmo_is_what_transformers_computes() {
    ["olmo2", "olmo3", "olmoe"].into_iter().for_each(check);
}

#[test]
fn glm_is_what_transformers_computes() {
    ["glm", "glm4", "glm4_moe"].into_iter().for_each(check);
}

#[test]
fn families_close_to_llama_are_what_transformers_computes() {
    ["smollm3", "granite", "ministral"].into_iter().for_each(check);
}

#[test]
fn gpt_oss_is_what_transformers_computes() {
    ["gpt_oss", "gpt_oss_mxfp4"].into_iter().for_each(check);
}

#[test]
fn deepseek_is_what_transformers_computes() {
    ["deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "deepseek_v3_halves"].into_iter().for_each(check);
}

/// Two layers, each with a latent of 12 numbers and 4 that turn, for keys and values of all heads.
#[test]
fn latent_attention_keeps_its_latents_alone() {
    let reference = Reference::read(&Device::cpu(1), "deepseek_v3");
    let bytes = KvPool::<f32>::bytes_of_block(&reference.network, 8, KvFormat::Stored);
    assert_eq!(bytes, 2 * 8 * (12 + 4) * size_of::<f32>());
    let model = &reference.network.architecture().transformer;
    let planned: u64 = model.layers().map(|layer| layer.attention.kv_values_per_token()).sum();
    assert_eq!(bytes as u64, planned * 8 * size_of::<f32>() as u64);
}

/// The weights are what PyTorch makes of the numbers and their scales.
#[test]
fn weights_of_eight_bits_compute_what_they_stand_for() {
    ["qwen3_fp8", "llama_fp8"].into_iter().for_each(check);
    let device = Device::cpu(1);
    let reference = Reference::read(&device, "qwen3_fp8");
    assert!(!reference.network.architecture().config_json().contains("quantization_config"));
    let file = SafetensorsFile::open(&reference.folder.join("model.safetensors")).unwrap();
    assert_eq!(file.tensors()["model.layers.0.mlp.down_proj.weight_scale_inv"].shape, [1, 2]);
    let bare = with_more("llama", &[("model.norm.weight", "F8_E4M3", &[24], vec![0x38; 24])]);
    let mut weights = Weights::<f32>::zeros(&device, &Reference::read(&device, "llama").network);
    let error = load(&Reference::read(&device, "llama").network, &device, &bare, &mut weights).unwrap_err();
    assert!(error.to_string().contains("no tensor of scales is beside it"), "{error}");
}

/// Over all layers together, dense ones between them, and without padding.
#[test]
fn the_loss_that_balances_experts_is_that_of_transformers() {
    ["mixtral_balance", "qwen3_moe_balance"].into_iter().for_each(check);
}

/// The tensors of a reference and some more, in a folder of their own.
fn with_more(name: &str, more: &[(&str, &str, &[usize], Vec<u8>)]) -> PathBuf {
    let reference = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name);
    let file = fs::read(reference.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let mut data = file[8 + length..].to_vec();
    for (tensor, dtype, shape, bytes) in more {
        let offsets = [data.len(), data.len() + bytes.len()];
        header[tensor] = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        data.extend(bytes);
    }
    let header = header.to_string();
    let whole = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    let folder =
        std::env::temp_dir().join(format!("bedplate-more-{}-{name}-{}", std::process::id(), more[0].0));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("model.safetensors"), whole).unwrap();
    folder
}

#[test]
fn an_unneeded_tensor_of_an_odd_type_is_reported_and_refuses_nothing() {
    let device = Device::cpu(1);
    let folder = with_more("gpt2", &[("transformer.h.0.attn.bias", "BOOL", &[2, 2], vec![1; 4])]);
    let reference = Reference::read(&device, "gpt2");
    let mut weights = Weights::<f32>::zeros(&device, &reference.network);
    let loaded = load(&reference.network, &device, &folder, &mut weights).unwrap();
    assert_eq!(loaded.unused, ["transformer.h.0.attn.bias"]);
    let folder = with_more("gpt2", &[("transformer.h.0.ln_1.bias", "I64", &[24], vec![0; 8 * 24])]);
    let error = load(&reference.network, &device, &folder, &mut weights).unwrap_err();
    let said = "tensor `transformer.h.0.ln_1.bias`: its format I64 is none of F32, BF16, F16";
    assert!(error.to_string().contains(said), "{error}");
}

#[test]
fn a_head_beside_a_tied_embedding_is_the_same_or_refused() {
    let device = Device::cpu(1);
    let reference = Reference::read(&device, "qwen2");
    let mut weights = Weights::<f32>::zeros(&device, &reference.network);
    let file = SafetensorsFile::open(&reference.folder.join("model.safetensors")).unwrap();
    let mut table = file.read("model.embed_tokens.weight").unwrap().unwrap();
    let bytes = |table: &[f32]| table.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let folder = with_more("qwen2", &[("lm_head.weight", "F32", &[67, 24], bytes(&table))]);
    assert!(load(&reference.network, &device, &folder, &mut weights).unwrap().unused.is_empty());
    table[5] += 1.0;
    let folder = with_more("qwen2", &[("lm_head.weight", "F32", &[67, 24], bytes(&table))]);
    let error = load(&reference.network, &device, &folder, &mut weights).unwrap_err();
    assert!(error.to_string().contains("holds `lm_head.weight` and another embedding"), "{error}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn saved_weights_are_the_same_file_as_the_reference() {
    for name in ["llama", "mixtral", "gpt2", "gemma3", "phi3", "olmo2", "glm4", "gpt_oss", "deepseek_v3"] {
        let device = Device::cpu(1);
        let reference = Reference::read(&device, name);
        let folder = std::env::temp_dir().join(format!("bedplate-network-{}-{name}", std::process::id()));
        save(&reference.network, &device, &reference.weights(&device), &folder).unwrap();
        let [ours, theirs] = [&folder, &reference.folder]
            .map(|folder| SafetensorsFile::open(&folder.join("model.safetensors")).unwrap());
        let names = |file: &SafetensorsFile| file.tensors().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&ours), names(&theirs));
        for name in names(&ours) {
            assert_eq!(ours.tensors()[&name].shape, theirs.tensors()[&name].shape);
            assert_eq!(ours.read(&name).unwrap(), theirs.read(&name).unwrap(), "{name}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}

/// What a variant is held against beside logits and gradients.
struct Continued {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    /// How far transformers' f32 is from its f64: logits and gradients.
    own: [f64; 2],
}

impl Continued {
    fn read(reference: &Reference) -> Self {
        let text = fs::read_to_string(reference.folder.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        let prompt = expected["prompt"].as_u64().unwrap() as usize;
        Self {
            prompt: reference.tokens[..prompt].to_vec(),
            greedy: serde_json::from_value(expected["greedy"].clone()).unwrap(),
            own: serde_json::from_value(expected["own"].clone()).unwrap(),
        }
    }
}

/// The most likely tokens after a prompt, by serving: the prompt at once, then token by token.
fn continued(reference: &Reference, device: &Device, prompt: &[u32], count: usize) -> Vec<u32> {
    const BLOCK: usize = 16;
    let network = &reference.network;
    let weights = PackedWeights::<f32>::load(network, device, &reference.folder, WeightFormat::F32).unwrap();
    let blocks = (prompt.len() + count).div_ceil(BLOCK);
    let shape =
        ServingShape { rows: prompt.len(), sequences: 1, table_entries: blocks, wanted: 1, adapter_rank: 0 };
    let mut pool = KvPool::new(device, network, blocks, BLOCK, KvFormat::Stored).unwrap();
    let mut room = ServingRoom::new(device, network, shape);
    let tables: Vec<u32> = (0..blocks as u32).collect();
    let mut logits = vec![0.0; network.architecture().transformer.vocab as usize];
    let (mut text, mut next) = (Vec::new(), prompt.to_vec());
    for _ in 0..count {
        let first = text.len();
        text.extend(&next);
        let positions: Vec<u32> = (first as u32..text.len() as u32).collect();
        let step = StepRows {
            tokens: &next,
            positions: &positions,
            starts: &[0, next.len() as u32],
            contexts: &[first as u32],
            table_starts: &[0, blocks as u32],
            tables: &tables,
            wanted: &[next.len() as u32 - 1],
        };
        network.answer(device, &weights, &mut pool, &step, RowAdapters::NONE, &mut room);
        room.read_logits(device, 0, &mut logits);
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        next = vec![logits.iter().position(|logit| *logit == most).unwrap() as u32];
    }
    text.extend(next);
    text.split_off(prompt.len())
}

/// A row of the table, and whether the variant is computed wrongly.
fn variant(device: &Device, folder: PathBuf) -> (String, bool) {
    let name = folder.file_name().unwrap().to_string_lossy().into_owned();
    let reference = match Reference::at(device, folder, 160) {
        Ok(reference) => reference,
        Err(error) => return (format!("| `{name}` | refused: {error} | | | |"), false),
    };
    let weights = reference.weights(device);
    let logits = logits_apart(&reference, device, &weights);
    let mut workspace = reference.workspace(device, Recompute::None);
    let mut gradients = Weights::zeros(device, &reference.network);
    let scale = 1.0 / reference.targets.len() as f32;
    let room = &mut workspace.room(0);
    reference.network.learn(device, &weights, room, &mut gradients, scale, 0.0);
    let (_, gradients) = gradients_apart(&reference, device, &gradients);
    let Continued { prompt, greedy, own } = Continued::read(&reference);
    let found = continued(&reference, device, &prompt, greedy.len());
    let same = found.iter().zip(&greedy).take_while(|(a, b)| a == b).count();
    let most = logits.max(gradients);
    // A sum that cancels is not more exact than its terms, in transformers neither.
    let rounding = f64::max(1e-5, 2.0 * own[0].max(own[1]).min(2e-5));
    let verdict = match () {
        () if same < greedy.len() || most > rounding || most.is_nan() => "apart",
        () if most > 2e-6 => "rounding",
        () => "equal",
    };
    let row = format!(
        "| `{name}` | {verdict} | {logits:.1e} ({:.1e}) | {gradients:.1e} ({:.1e}) | {same} of {} |",
        own[0],
        own[1],
        greedy.len()
    );
    (row, verdict == "apart")
}

/// Those that `tests/reference/variants` makes; without its folder there is nothing to compare.
#[test]
fn odd_variants_are_what_transformers_computes_or_refused() {
    let Some(root) = std::env::var_os("BEDPLATE_VARIANTS") else {
        return println!("SKIPPED: odd variants, which `tests/reference/variants` makes");
    };
    let entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = entries.filter(|path| path.join("expected.json").exists()).collect();
    folders.sort();
    assert!(!folders.is_empty(), "the folder has variants");
    let device = Device::cpu(1);
    let rows: Vec<(String, bool)> = folders.into_iter().map(|folder| variant(&device, folder)).collect();
    rows.iter().for_each(|(row, _)| println!("{row}"));
    let wrong: Vec<&str> =
        rows.iter().filter(|(_, is_wrong)| *is_wrong).map(|(row, _)| row.as_str()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
