//! Routing of tokens to experts: probabilities, choices, and the loss that keeps experts equally busy.

use crate::{Device, Matrix, MatrixMut, View, ViewMut};

/// How much unequal use of experts counts in the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Balance {
    pub coefficient: f32,
}

impl Device {
    /// The softmax of each row, and of each row the `per_token` experts with the largest logits, the largest first and of equal
    /// ones the lower number; their weights are their probabilities, `normalise`d to sum 1 where asked.
    pub fn route(
        &self,
        logits: Matrix<'_, f32>,
        per_token: usize,
        normalise: bool,
        probabilities: MatrixMut<'_, f32>,
        experts: ViewMut<'_, u32>,
        weights: ViewMut<'_, f32>,
    ) {
        assert_eq!(probabilities.shape(), logits.shape(), "probabilities of experts");
        assert_eq!([experts.len(), weights.len()], [logits.rows * per_token; 2], "chosen experts");
        assert!(per_token <= logits.columns, "{per_token} of {} experts", logits.columns);
        in_room!(self, Memory, route(logits, per_token, normalise, probabilities, experts, weights));
    }

    /// Replaces `d_logits` by the gradient of what follows the weights, and of `balance` where it counts.
    #[expect(clippy::too_many_arguments, reason = "what the forward pass gave, and how")]
    pub fn route_backward(
        &self,
        probabilities: Matrix<'_, f32>,
        experts: View<'_, u32>,
        weights: View<'_, f32>,
        per_token: usize,
        normalise: bool,
        d_weights: View<'_, f32>,
        balance: Option<Balance>,
        d_logits: MatrixMut<'_, f32>,
    ) {
        assert_eq!(d_logits.shape(), probabilities.shape(), "logits of experts");
        let choices = probabilities.rows * per_token;
        assert_eq!([experts.len(), weights.len(), d_weights.len()], [choices; 3], "chosen experts");
        let pressure = balance.map_or(0.0, |balance| {
            balance.coefficient * probabilities.columns as f32 / probabilities.rows as f32
        });
        let chosen = (experts, weights, d_weights);
        in_room!(
            self,
            Memory,
            route_backward(probabilities, chosen, per_token, normalise, pressure, d_logits)
        );
    }

    /// The load-balancing loss of Switch Transformers in Hugging Face's form, without its coefficient: experts times the sum, over
    /// experts, of choices per token times mean probability. It is `per_token` where all are equally busy.
    pub fn balance_loss(
        &self,
        probabilities: Matrix<'_, f32>,
        experts: View<'_, u32>,
        per_token: usize,
    ) -> f32 {
        assert_eq!(experts.len(), probabilities.rows * per_token, "chosen experts");
        in_room!(self, Memory, balance_loss(probabilities, experts))
    }
}

#[cfg(test)]
mod tests;
