//! Low-rank adapters on a host: the weights are merged once per step, so forward and backward are those of full
//! training, and each layer's gradient is projected onto its adapters right away.

use bedplate_transformer::{ParameterPart, Transformer};

use super::WIDE;
use super::operators::{Linear, OperatorBytes, Operators, Work};

/// Adapters of the four attention projections, the runtime's default.
#[derive(Debug, Clone)]
pub(super) struct HostAdapters {
    rank: f64,
    /// Adapted matrices, outputs and inputs, with the count of each.
    matrices: Vec<(f64, f64, f64)>,
    /// Trainable parameters.
    pub(super) parameters: f64,
    /// The gradient of one block's weights is whole.
    pub(super) largest_block: f64,
    layer_parameters: f64,
}

impl HostAdapters {
    pub(super) fn of(model: &Transformer, rank: u32) -> Self {
        let rank = f64::from(rank);
        let mut matrices = Vec::new();
        let (mut largest, mut layer_parameters) = (model.vocab as f64 * model.hidden as f64, 0.0f64);
        for run in model.layer_kinds() {
            let parameters = model.layer_parameters(&run.layer) as f64;
            largest = largest.max(parameters);
            layer_parameters += run.count as f64 * parameters;
            let adapted = run.layer.matrices(model.hidden).into_iter();
            let adapted = adapted.filter(|matrix| matrix.part == ParameterPart::Attention);
            matrices.extend(adapted.map(|it| (it.outputs as f64, it.inputs as f64, run.count as f64)));
        }
        let parameters =
            matrices.iter().map(|(outputs, inputs, count)| count * rank * (outputs + inputs)).sum();
        Self { rank, matrices, parameters, largest_block: largest, layer_parameters }
    }

    /// Per micro-batch: each layer's gradient cleared and projected.
    pub(super) fn project(&self, operators: &Operators) -> Work {
        let cleared = OperatorBytes { fresh: self.layer_parameters * WIDE, kept: 0.0 };
        let mut work = operators.stream(cleared, 0.0);
        for (outputs, inputs, count) in &self.matrices {
            let of_a = operators.weight_gradient(Linear::new(*outputs, self.rank, *inputs));
            let of_b = operators.product(Linear::new(*outputs, self.rank, *inputs));
            work += (of_a + of_b) * *count;
        }
        work
    }

    /// Per step: the compute weights, made from the base weights.
    pub(super) fn merge(&self, operators: &Operators) -> Work {
        let mut work = Work::default();
        for (outputs, inputs, count) in &self.matrices {
            let bytes = outputs * inputs * operators.element;
            let copied = operators.stream(OperatorBytes { fresh: 2.0 * bytes, kept: 0.0 }, 0.0);
            let added = operators.input_gradient(Linear::new(*outputs, self.rank, *inputs));
            work += (copied + added) * *count;
        }
        work
    }
}
