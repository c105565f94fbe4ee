//! What a trainer prints of its model and layout when it starts: Megatron's dump of its arguments, torchtitan's lines of mesh, model and
//! batch, the configuration and the batch sizes of transformers' Trainer.
//!
//! Only the beginning of a log is read for it. What is not printed is not guessed: without the length of a sequence there are
//! no arguments.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use bedplate_report::RunArguments;
use regex::Regex;
use serde_json::{Map, Value, json};

use crate::origin::labels;
use crate::plain;

/// Of a log, read for arguments.
const MOST_BYTES: usize = 8 << 20;
const LONGEST: usize = 4 << 10;
const MOST_ARGUMENTS: usize = 4_096;
const LONGEST_CONFIG: usize = 12 << 10;

/// Reads lines until it knows the arguments.
#[derive(Debug, Default)]
pub(crate) struct ArgumentsReader {
    read: usize,
    is_over: bool,
    pending: Vec<u8>,
    /// `name ..... value`, as Megatron and DeepSpeed print them.
    dotted: BTreeMap<String, String>,
    titan: Titan,
    trainer: Trainer,
}

#[derive(Debug, Default)]
struct Titan {
    mesh: BTreeMap<String, u32>,
    model: Option<BTreeMap<String, f64>>,
}

#[derive(Debug, Default)]
struct Trainer {
    /// The configuration so far, while its lines come.
    open: Option<String>,
    config: Option<String>,
    sequence: Option<u64>,
    per_device: Option<u64>,
    /// The same of all devices, with accumulation.
    all_devices: Option<u64>,
    accumulation: Option<u64>,
}

impl ArgumentsReader {
    /// The arguments, once.
    pub(crate) fn feed(&mut self, piece: &[u8]) -> Option<RunArguments> {
        if self.is_over {
            return None;
        }
        self.read += piece.len();
        self.pending.extend_from_slice(piece);
        let pending = std::mem::take(&mut self.pending);
        let end = pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let found = pending[..end].split(|byte| *byte == b'\n').find_map(|line| self.line(line));
        if pending.len() - end <= LONGEST {
            self.pending = pending[end..].to_vec();
        }
        if found.is_some() || self.read > MOST_BYTES {
            *self = Self { is_over: true, ..Self::default() };
        }
        found
    }

    fn line(&mut self, line: &[u8]) -> Option<RunArguments> {
        let line = plain(&line[..line.len().min(LONGEST)]);
        let text = String::from_utf8_lossy(labels(&line).text);
        let text = text.trim_end();
        if let Some(captures) = rules().dotted.captures(text) {
            if self.dotted.len() < MOST_ARGUMENTS {
                self.dotted.insert(captures[1].to_owned(), captures[2].trim().to_owned());
            }
            return None;
        }
        if text.contains("end of arguments") {
            return megatron(&self.dotted);
        }
        self.titan.line(text).or_else(|| self.trainer.line(text, &self.dotted))
    }
}

struct Rules {
    dotted: Regex,
    mesh: Regex,
    model: Regex,
    pair: Regex,
    batch: Regex,
    length: Regex,
}

fn rules() -> &'static Rules {
    static RULES: OnceLock<Rules> = OnceLock::new();
    let of = |pattern: &str| Regex::new(pattern).expect("the pattern is right");
    RULES.get_or_init(|| Rules {
        dotted: of(r"^\s*([a-z][a-z0-9_]*) \.{3,} ?(.*)$"),
        mesh: of(r"Building \d-D device mesh with \[([^\]]*)\], \[([^\]]*)\]"),
        model: of(r"Building \S+ \S+ with \w*Args\((.*)\)"),
        pair: of(r"(\w+)=([0-9.]+)"),
        batch: of(r"local batch size:? (\d+), global batch size:? (\d+),.*sequence length:? (\d+)(?:, total steps:? (\d+))?"),
        length: of(r"\b(?:max_seq_length|max_length|cutoff_len|model_max_length)\W{1,3}(\d+)"),
    })
}

fn megatron(arguments: &BTreeMap<String, String>) -> Option<RunArguments> {
    let number = |name: &str| arguments.get(name)?.parse::<u64>().ok();
    let is = |name: &str| arguments.get(name).is_some_and(|value| value == "True");
    let degree = |name: &str| number(name).filter(|degree| *degree > 0).unwrap_or(1);
    let (hidden, layers, heads) =
        (number("hidden_size")?, number("num_layers")?, number("num_attention_heads")?);
    let (sequence, global_batch, world) =
        (number("seq_length")?, number("global_batch_size")?, number("world_size")?);
    let groups = number("num_query_groups").filter(|_| is("group_query_attention")).unwrap_or(heads);
    let wide = number("ffn_hidden_size").unwrap_or(4 * hidden);
    let vocabulary = number("padded_vocab_size").or(number("vocab_size")).unwrap_or(50_304);
    let mut config = shape(hidden, wide, layers, heads, groups, vocabulary, sequence);
    config.insert("tie_word_embeddings".into(), json!(!is("untie_embeddings_and_output_weights")));
    if let Some(experts) = number("num_experts").filter(|experts| *experts > 1) {
        config.insert("model_type".into(), json!("mixtral"));
        config.insert("architectures".into(), json!(["MixtralForCausalLM"]));
        config.insert("num_local_experts".into(), json!(experts));
        config.insert("num_experts_per_tok".into(), json!(number("moe_router_topk").unwrap_or(2)));
    }
    let [tensor, pipeline, context, expert] = [
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
    ]
    .map(degree);
    let data = world.checked_div(tensor * pipeline * context).filter(|data| *data > 0)?;
    let mut layout = format!("dp{data}");
    let mut add = |name: &str, degree: u64| {
        if degree > 1 {
            layout += &format!(".{name}{degree}");
        }
    };
    add("tp", tensor);
    add("cp", context);
    add("pp", pipeline);
    add("vpp", number("virtual_pipeline_model_parallel_size").unwrap_or(1));
    add("ep", expert);
    add("mb", degree("micro_batch_size"));
    if is("sequence_parallel") && tensor > 1 {
        layout += ".sp";
    }
    if is("use_distributed_optimizer") && data * context > 1 {
        layout += ".zero1";
    }
    layout += match arguments.get("recompute_granularity").map(String::as_str) {
        Some("full") => ".recompute-full",
        Some("selective") => ".recompute-selective",
        _ => "",
    };
    if arguments.get("fp8").is_some_and(|format| format != "None") {
        layout += ".fp8";
    } else if is("fp16") {
        layout += ".fp16";
    }
    Some(RunArguments {
        trainer: "megatron".into(),
        config: Value::Object(config).to_string(),
        layout,
        sequence,
        global_batch,
        steps: number("train_iters"),
    })
}

/// A decoder with gated MLPs, as most are.
fn shape(
    hidden: u64,
    wide: u64,
    layers: u64,
    heads: u64,
    groups: u64,
    vocabulary: u64,
    context: u64,
) -> Map<String, Value> {
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden,
        "intermediate_size": wide, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": groups, "vocab_size": vocabulary, "max_position_embeddings": context,
    });
    config.as_object().cloned().unwrap_or_default()
}

impl Titan {
    fn line(&mut self, text: &str) -> Option<RunArguments> {
        if let Some(captures) = rules().mesh.captures(text) {
            let names = captures[1].split(',').map(|name| name.trim().trim_matches(['\'', '"']).to_owned());
            let sizes = captures[2].split(',').filter_map(|size| size.trim().parse().ok());
            self.mesh.extend(names.zip(sizes));
        } else if let Some(captures) = rules().model.captures(text) {
            let pairs = rules().pair.captures_iter(captures.get(1)?.as_str());
            let pairs = pairs.filter_map(|pair| Some((pair[1].to_owned(), pair[2].parse().ok()?)));
            self.model = Some(pairs.collect());
        } else if let Some(captures) = rules().batch.captures(text) {
            let number = |at: usize| captures.get(at)?.as_str().parse::<u64>().ok();
            let arguments = self.arguments(number(1)?, number(2)?, number(3)?)?;
            return Some(RunArguments { steps: number(4), ..arguments });
        }
        None
    }

    fn arguments(&self, local: u64, global_batch: u64, sequence: u64) -> Option<RunArguments> {
        let model = self.model.as_ref()?;
        let number = |name: &str| model.get(name).copied().filter(|value| *value >= 1.0);
        let (hidden, layers, heads) = (number("dim")?, number("n_layers")?, number("n_heads")?);
        // As its feed-forward makes it of the model's arguments.
        let multiple = number("multiple_of").unwrap_or(256.0);
        let wide = (8.0 * hidden / 3.0).floor() * model.get("ffn_dim_multiplier").copied().unwrap_or(1.0);
        let wide = (wide.floor() / multiple).ceil() * multiple;
        let groups = number("n_kv_heads").unwrap_or(heads);
        let config = shape(
            hidden as u64,
            wide as u64,
            layers as u64,
            heads as u64,
            groups as u64,
            number("vocab_size").unwrap_or(128_256.0) as u64,
            sequence,
        );
        let size = |name: &str| u64::from(self.mesh.get(name).copied().unwrap_or(1));
        let (sharded, tensor, pipeline, context) = (size("dp_shard"), size("tp"), size("pp"), size("cp"));
        let data = sharded * size("dp_replicate");
        let mut layout = format!("dp{}", if self.mesh.contains_key("dp") { size("dp") } else { data });
        for (name, degree) in [("tp", tensor), ("cp", context), ("pp", pipeline), ("mb", local)] {
            if degree > 1 {
                layout += &format!(".{name}{degree}");
            }
        }
        if tensor > 1 {
            layout += ".sp";
        }
        if sharded * context > 1 {
            layout += ".zero3";
        }
        Some(RunArguments {
            trainer: "torchtitan".into(),
            config: Value::Object(config).to_string(),
            layout,
            sequence,
            global_batch,
            steps: None,
        })
    }
}

impl Trainer {
    fn line(&mut self, text: &str, dotted: &BTreeMap<String, String>) -> Option<RunArguments> {
        if let Some(open) = &mut self.open {
            open.push_str(text.trim());
            let is_over = text == "}";
            if is_over || open.len() > LONGEST_CONFIG {
                let whole = self.open.take().filter(|_| is_over);
                let whole = whole.filter(|config| serde_json::from_str::<Map<String, Value>>(config).is_ok());
                // The base's configuration comes first; a tokenizer or an adapter may print another.
                self.config = self.config.take().or(whole);
            }
            return None;
        }
        if text.contains("odel config ") && text.ends_with("Config {") {
            self.open = Some("{".to_owned());
        } else if let Some(captures) = rules().length.captures(text) {
            self.sequence =
                captures[1].parse().ok().filter(|length| (2..=1 << 24).contains(length)).or(self.sequence);
        }
        let behind =
            |name: &str| -> Option<u64> { text.split_once(name)?.1.trim().replace(',', "").parse().ok() };
        self.per_device = behind("Instantaneous batch size per device =").or(self.per_device);
        let global_batch = behind("Total train batch size (w. parallel, distributed & accumulation) =");
        self.all_devices = global_batch.or(self.all_devices);
        self.accumulation = behind("Gradient Accumulation steps =").or(self.accumulation);
        self.accumulation?;
        let (config, sequence) = (self.config.clone()?, self.sequence?);
        let global_batch = self.all_devices?;
        let local = self.per_device?;
        let data = global_batch.checked_div(local * self.accumulation?).filter(|data| *data > 0)?;
        let mut layout = format!("dp{data}");
        if local > 1 {
            layout += &format!(".mb{local}");
        }
        let stage = dotted.get("zero_optimization_stage").and_then(|stage| stage.parse::<u32>().ok());
        if let Some(stage) = stage.filter(|stage| (1..=3).contains(stage) && data > 1) {
            layout += &format!(".zero{stage}");
        }
        let trainer = "transformers".to_owned();
        Some(RunArguments { trainer, config, layout, sequence, global_batch, steps: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<RunArguments> {
        let mut reader = ArgumentsReader::default();
        // In pieces that end within lines.
        text.as_bytes().chunks(37).find_map(|piece| reader.feed(piece))
    }

    #[test]
    fn megatrons_arguments() {
        let dump = "using world size: 64, data-parallel size: 8\n------------------------ arguments ------------------------\n\
            \x20 context_parallel_size ........................... 1\n  expert_model_parallel_size ...................... 1\n\
            \x20 ffn_hidden_size ................................. 14336\n  global_batch_size ............................... 512\n\
            \x20 group_query_attention ........................... True\n  hidden_size ..................................... 4096\n\
            \x20 micro_batch_size ................................ 2\n  num_attention_heads ............................. 32\n\
            \x20 num_layers ...................................... 32\n  num_query_groups ................................ 8\n\
            \x20 pipeline_model_parallel_size .................... 4\n  seq_length ...................................... 8192\n\
            \x20 sequence_parallel ............................... True\n  tensor_model_parallel_size ...................... 2\n\
            \x20 use_distributed_optimizer ....................... True\n  untie_embeddings_and_output_weights ............. True\n\
            \x20 vocab_size ...................................... 128256\n  world_size ...................................... 64\n\
            \x20 recompute_granularity ........................... None\n-------------------- end of arguments ---------------------\n";
        let read = read(dump).expect("all is there");
        assert_eq!((&read.trainer[..], &read.layout[..]), ("megatron", "dp8.tp2.pp4.mb2.sp.zero1"));
        assert_eq!((read.sequence, read.global_batch), (8192, 512));
        let config: Value = serde_json::from_str(&read.config).unwrap();
        assert_eq!(
            (&config["num_key_value_heads"], &config["intermediate_size"]),
            (&json!(8), &json!(14336))
        );
    }

    #[test]
    fn torchtitans_lines() {
        let log = "[titan] 2025-03-01 10:00:00,123 - root - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]\n\
            [rank0]:[titan] 2025-03-01 10:00:01,123 - root - INFO - Building llama3 8B with TransformerModelArgs(_enforced='x', dim=4096, n_layers=32, n_heads=32, n_kv_heads=8, vocab_size=128256, multiple_of=1024, ffn_dim_multiplier=1.3, norm_eps=1e-05)\n\
            [rank0]:[titan] 2025-03-01 10:00:02,123 - root - INFO - Trainer is initialized with local batch size 1, global batch size 4, gradient accumulation steps 1, sequence length 8192, total steps 1000 (warmup 200).\n";
        let read = read(log).expect("all is there");
        assert_eq!(read.layout, "dp4.tp2.sp.zero3");
        let config: Value = serde_json::from_str(&read.config).unwrap();
        assert_eq!(config["intermediate_size"], json!(14336));
    }

    #[test]
    fn transformers_configuration_and_batch() {
        let log = "[INFO|configuration_utils.py:771] 2025-01-08 10:00:00,000 >> Model config LlamaConfig {\n  \"hidden_size\": 2048,\n  \"num_hidden_layers\": 16\n}\n\n\
            max_seq_length=2048,\n[INFO|trainer.py:2243] 2025-01-08 >> ***** Running training *****\n>>   Num examples = 52,002\n\
            >>   Instantaneous batch size per device = 4\n>>   Total train batch size (w. parallel, distributed & accumulation) = 128\n\
            >>   Gradient Accumulation steps = 4\n";
        let read = read(log).expect("all is there");
        assert_eq!((&read.layout[..], read.global_batch, read.sequence), ("dp8.mb4", 128, 2048));
        assert_eq!(read.config, "{\"hidden_size\": 2048,\"num_hidden_layers\": 16}");
    }

    #[test]
    fn what_is_not_printed_is_not_guessed() {
        assert_eq!(read("  hidden_size ......... 4096\n---- end of arguments ----\n"), None);
        assert_eq!(read("step: 1 loss: 3.0\n".repeat(100).as_str()), None);
    }
}
