//! Low-rank adapters beside packed weights: rows of a step may each go through another one.
//!
//! `y += s (x A^T) B^T` is computed for the rows that name an adapter, so one copy of the model answers with many. Files are PEFT's:
//! `adapter_config.json` and `adapter_model.safetensors`.

use std::ops::Range;
use std::path::Path;

use bedplate_host::read_regular_text;
use bedplate_kernels::{Accumulate, Device, Element, Matrix, MatrixMut, Packed, WeightFormat};
use serde_json::Value;

use super::room::AdapterRoom;
use crate::safetensors::MOST_JSON_BYTES;
use crate::table::{Block, BlockParts, LayerParts, LinearParts, MlpParts, Tensor};
use crate::{Network, NetworkError, SafetensorsFile};

/// What PEFT computes and this program does not.
const NOT_COMPUTED: [&str; 12] = [
    "use_dora",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
    "lora_bias",
    "use_qalora",
    "layer_replication",
    "alora_invocation_tokens",
    "arrow_config",
    "trainable_token_indices",
    "target_parameters",
    "modules_to_save",
];
/// Beginnings that take a part of the base into the adapter.
const OTHER_BASE: [&str; 4] = ["pissa", "olora", "corda", "loftq"];
/// The largest rank that is read; published adapters have at most some hundreds.
const MOST_RANK: usize = 1 << 14;

/// An adapter of a network.
pub struct Adapter {
    layers: Vec<Vec<Piece>>,
    rank: usize,
}

/// The linear layers of a layer that adapters may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdapterTarget {
    Qkv,
    /// The first columns of `Qkv`, where they have a product of their own.
    QueriesKeys,
    Values,
    /// Queries from what they are projected down to, in latent attention.
    QueriesUp,
    Output,
    GateUp,
    Down,
}

/// One adapted matrix: some outputs of a linear layer.
struct Piece {
    target: AdapterTarget,
    columns: Range<usize>,
    a: Packed,
    /// Times the adapter's scale.
    b: Packed,
}

/// Which rows of a step go through which adapter.
#[derive(Clone, Copy)]
pub struct RowAdapters<'a> {
    pub rows: &'a [(Range<usize>, &'a Adapter)],
}

impl RowAdapters<'_> {
    pub const NONE: RowAdapters<'static> = RowAdapters { rows: &[] };

    /// Adds what adapters give for the input of a linear layer to its output.
    pub(super) fn add<E: Element>(
        &self,
        device: &Device,
        layer: usize,
        target: AdapterTarget,
        input: Matrix<'_, E>,
        mut output: MatrixMut<'_, E>,
        room: Option<&mut AdapterRoom<E>>,
    ) {
        let Some(room) = room else { return };
        for (rows, adapter) in self.rows {
            let (count, x) = (rows.len(), input.rows(rows.clone()));
            for piece in adapter.layers[layer].iter().filter(|piece| piece.target == target) {
                let (rank, width) = (piece.a.outputs(), piece.columns.len());
                let small = room.small.range_mut(0..count * rank).matrix(count, rank);
                device.linear_packed(x, &piece.a, None, None, small);
                let small = room.small.range(0..count * rank).matrix(count, rank);
                let large = room.large.range_mut(0..count * width).matrix(count, width);
                device.linear_packed(small, &piece.b, None, None, large);
                let to = output.reborrow().rows(rows.clone()).columns(piece.columns.clone());
                device.put_rows(room.large.range(0..count * width).matrix(count, width), Accumulate::Add, to);
            }
        }
    }
}

impl Adapter {
    /// Reads a folder that PEFT or `bedplate train` wrote. An error where it adapts what is not adapted in serving.
    pub fn load(network: &Network, device: &Device, folder: &Path) -> Result<Self, NetworkError> {
        let scale = read_scale(&folder.join("adapter_config.json"))?;
        let path = folder.join("adapter_model.safetensors");
        let file = SafetensorsFile::open(&path)?;
        let broken = |what: String| NetworkError::BrokenWeights { path: path.clone(), what };
        let mut used = 0;
        let mut rank = 0;
        let mut layers = Vec::new();
        for block in network.blocks() {
            let BlockParts::Layer(parts) = &block.parts else { continue };
            let mut pieces = Vec::new();
            for (tensor, target, columns) in adaptable(block, parts) {
                let module = tensor.name.trim_end_matches(".weight");
                let [a_name, b_name] =
                    ["lora_A", "lora_B"].map(|part| format!("base_model.model.{module}.{part}.weight"));
                let shape = |name: &str| file.tensors().get(name).map(|stored| stored.shape.as_slice());
                let (Some(a), Some(b)) = (shape(&a_name), shape(&b_name)) else { continue };
                let inputs = tensor.size()[1];
                let this = a.first().copied().unwrap_or_default();
                if !(1..=MOST_RANK).contains(&this) || a != [this, inputs] || b != [columns.len(), this] {
                    return Err(broken(format!("the adapter of `{module}` does not fit the model")));
                }
                let (Some(a), Some(b)) = (file.read(&a_name)?, file.read(&b_name)?) else { continue };
                let b: Vec<f32> = b.iter().map(|number| number * scale).collect();
                if !a.iter().chain(&b).all(|number| number.is_finite()) {
                    return Err(broken(format!("the adapter of `{module}` has numbers that are not finite")));
                }
                let pack = |numbers: &[f32], outputs| {
                    let mut flat = device.zeros(numbers.len());
                    device.write(flat.view_mut(), numbers);
                    device.pack(flat.view(), outputs, WeightFormat::F32)
                };
                (used, rank) = (used + 2, rank.max(this));
                pieces.push(Piece { target, a: pack(&a, this), b: pack(&b, columns.len()), columns });
            }
            layers.push(pieces);
        }
        if used < file.tensors().len() || used == 0 {
            let all = file.tensors().len();
            return Err(broken(format!(
                "{used} of its {all} tensors are adapters of attention and dense MLPs of this model, the only ones that serving takes"
            )));
        }
        Ok(Self { layers, rank })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }
}

/// The matrices of a layer that adapters may change: their linear layers and their columns there.
fn adaptable<'a>(
    block: &'a Block,
    parts: &'a LayerParts,
) -> impl Iterator<Item = (&'a Tensor, AdapterTarget, Range<usize>)> {
    let dense = match &parts.mlp {
        MlpParts::Dense(dense) => Some(dense),
        MlpParts::Mixture(_) => None,
    };
    let query_up = parts.latent.as_ref().and_then(|latent| latent.query_up.as_ref());
    let linears: Vec<(AdapterTarget, &LinearParts)> =
        [(AdapterTarget::Qkv, &parts.qkv), (AdapterTarget::Output, &parts.output)]
            .into_iter()
            .chain(query_up.map(|up| (AdapterTarget::QueriesUp, up)))
            .chain(dense.map(|dense| (AdapterTarget::GateUp, &dense.gate_up)))
            .chain(dense.map(|dense| (AdapterTarget::Down, &dense.down)))
            .collect();
    let unnormed = parts.head_norms.is_some().then_some(parts.widths.unnormed);
    block.tensors.iter().filter(|tensor| tensor.kind.is_matrix()).filter_map(move |tensor| {
        let is_inside = |parts: &LinearParts| {
            parts.weight.start <= tensor.range.start && tensor.range.end <= parts.weight.end
        };
        let (target, linear) = linears.iter().find(|(_, parts)| is_inside(parts))?;
        let [outputs, inputs] = tensor.size();
        let first = (tensor.range.start - linear.weight.start) / inputs;
        let (target, first) = match (target, unnormed) {
            (AdapterTarget::Qkv, Some(unnormed)) if first >= unnormed => {
                (AdapterTarget::Values, first - unnormed)
            }
            (AdapterTarget::Qkv, Some(_)) => (AdapterTarget::QueriesKeys, first),
            (target, _) => (*target, first),
        };
        Some((tensor, target, first..first + outputs))
    })
}

/// What an adapter's products are multiplied by.
fn read_scale(path: &Path) -> Result<f32, NetworkError> {
    let text = read_regular_text(path, MOST_JSON_BYTES)
        .map_err(|source| NetworkError::ReadWeights { path: path.to_owned(), source })?;
    let broken = |what: &str| NetworkError::BrokenWeights { path: path.to_owned(), what: what.to_owned() };
    let config: Value = serde_json::from_str(&text).map_err(|_| broken("it is not JSON"))?;
    let number = |key: &str| config.get(key).and_then(Value::as_f64);
    let rank = number("r").filter(|rank| *rank >= 1.0).ok_or_else(|| broken("it has no rank `r`"))?;
    let alpha = number("lora_alpha").ok_or_else(|| broken("it has no `lora_alpha`"))?;
    let is_set = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(listed) => !listed.is_empty(),
        Value::Object(keys) => !keys.is_empty(),
        _ => true,
    };
    if let Some(key) = NOT_COMPUTED.into_iter().find(|key| config.get(*key).is_some_and(is_set)) {
        return Err(broken(&format!("`{key}` is not computed")));
    }
    if let Some(bias) = config.get("bias").and_then(Value::as_str).filter(|bias| *bias != "none") {
        return Err(broken(&format!("`bias` is `{bias}`; only adapters without biases are computed")));
    }
    let beginning = config.get("init_lora_weights").and_then(Value::as_str).unwrap_or_default();
    if OTHER_BASE.iter().any(|name| beginning.starts_with(name)) {
        return Err(broken(&format!(
            "it was begun as {beginning}, which changes the base: it belongs to that and not to the model; PEFT's `save_pretrained` with `path_initial_model_for_weight_conversion` makes one of the model"
        )));
    }
    let is_by_root = config.get("use_rslora").and_then(Value::as_bool) == Some(true);
    Ok((alpha / if is_by_root { rank.sqrt() } else { rank }) as f32)
}
