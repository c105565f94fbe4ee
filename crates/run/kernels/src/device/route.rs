//! Routing of tokens to experts: probabilities, choices, and the loss that keeps experts equally busy.

use bedplate_breakdown::Part;

use super::Backend;
use crate::{Device, Element, Matrix, MatrixMut, View, ViewMut};

/// How much unequal use of experts counts in the loss.
///
/// The loss is that of Switch Transformers as `load_balancing_loss_func` of Hugging Face's transformers has it: the number of experts
/// times the sum, over experts, of choices per token times mean probability, both taken over the tokens of all layers together.
/// It is the number of choices where all experts are equally busy.
#[derive(Debug, Clone, Copy)]
pub struct Balance<'a> {
    pub coefficient: f32,
    /// What [`Device::expert_shares`] gave for every layer with experts, a row each; rows of other layers are zero.
    pub shares: Matrix<'a, f32>,
    /// Layers with experts.
    pub layers: usize,
    /// 1 for each token that counts, 0 for padding.
    pub counted: View<'a, u32>,
    /// Tokens that count, here and wherever else the same sequences are.
    pub tokens: usize,
}

/// How experts are chosen by their logits, and weighed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouteRule {
    pub scores: RouteScores,
    /// Experts are chosen from the best groups.
    pub groups: Option<RouteGroups>,
    /// Weights of the chosen experts have the sum 1 before they are scaled.
    pub normalise: bool,
    /// What weights are multiplied by.
    pub scale: f32,
}

/// What experts are weighed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteScores {
    /// Their probabilities among all.
    Softmax,
    /// Each by itself (DeepSeek V3).
    Sigmoid,
}

/// Groups of neighbouring experts, at most [`RouteGroups::MOST`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteGroups {
    /// Divides the number of experts.
    pub count: usize,
    pub chosen: usize,
    pub by: GroupScore,
}

/// What a group is as good as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupScore {
    Best,
    /// The sum of its best two.
    BestTwo,
}

impl RouteGroups {
    pub const MOST: usize = 64;
}

impl RouteRule {
    /// A softmax over all experts.
    pub fn softmax(normalise: bool) -> Self {
        Self { scores: RouteScores::Softmax, groups: None, normalise, scale: 1.0 }
    }

    /// Whether every device has it.
    pub fn is_plain(&self) -> bool {
        *self == Self::softmax(self.normalise)
    }
}

pub(crate) struct RouteForward<'a> {
    pub(crate) logits: Matrix<'a, f32>,
    pub(crate) per_token: usize,
    pub(crate) normalise: bool,
    pub(crate) probabilities: MatrixMut<'a, f32>,
    pub(crate) experts: ViewMut<'a, u32>,
    pub(crate) weights: ViewMut<'a, f32>,
}

/// What the forward pass gave, and how.
pub(crate) struct RouteBackward<'a> {
    pub(crate) probabilities: Matrix<'a, f32>,
    pub(crate) experts: View<'a, u32>,
    pub(crate) weights: View<'a, f32>,
    pub(crate) per_token: usize,
    pub(crate) normalise: bool,
    pub(crate) d_weights: View<'a, f32>,
    pub(crate) balance: Option<Balance<'a>>,
    pub(crate) d_logits: MatrixMut<'a, f32>,
}

pub(crate) struct ExpertShares<'a> {
    pub(crate) experts: View<'a, u32>,
    pub(crate) per_token: usize,
    pub(crate) counted: View<'a, u32>,
    pub(crate) tokens: usize,
    pub(crate) shares: ViewMut<'a, f32>,
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
        let route = RouteForward { logits, per_token, normalise, probabilities, experts, weights };
        on_backend!(self, Memory, route(route));
    }

    /// The same by any rule; the scores of all experts go to `probabilities`. A `correction` is added to the scores by which experts are
    /// chosen, not to those that they are weighed by. What is not [plain](RouteRule::is_plain) is on the processor only.
    #[expect(clippy::too_many_arguments, reason = "what is chosen by, and what comes out")]
    pub fn route_by<C: Element>(
        &self,
        rule: &RouteRule,
        logits: Matrix<'_, f32>,
        correction: Option<View<'_, C>>,
        per_token: usize,
        probabilities: MatrixMut<'_, f32>,
        experts: ViewMut<'_, u32>,
        weights: ViewMut<'_, f32>,
    ) {
        if rule.is_plain() && correction.is_none() {
            return self.route(logits, per_token, rule.normalise, probabilities, experts, weights);
        }
        let Backend::Cpu(cpu) = &self.backend else { unreachable!("a GPU has the plain rule alone") };
        assert_eq!(probabilities.shape(), logits.shape(), "scores of experts");
        assert_eq!([experts.len(), weights.len()], [logits.rows * per_token; 2], "chosen experts");
        assert!(correction.is_none_or(|correction| correction.len() == logits.columns), "corrected scores");
        let eligible = rule.groups.map_or(logits.columns, |groups| {
            assert!(
                groups.count <= RouteGroups::MOST && logits.columns.is_multiple_of(groups.count),
                "groups"
            );
            logits.columns / groups.count * groups.chosen
        });
        assert!(per_token <= eligible, "{per_token} of {eligible} experts");
        let normalise = rule.normalise;
        let route = RouteForward { logits, per_token, normalise, probabilities, experts, weights };
        cpu.time(Part::Memory, || cpu.route_by(rule, correction, route));
    }

    /// The way back through [`route_by`](Device::route_by).
    #[expect(clippy::too_many_arguments, reason = "what the forward pass gave, and how")]
    pub fn route_by_backward(
        &self,
        rule: &RouteRule,
        probabilities: Matrix<'_, f32>,
        experts: View<'_, u32>,
        weights: View<'_, f32>,
        per_token: usize,
        d_weights: View<'_, f32>,
        balance: Option<Balance<'_>>,
        d_logits: MatrixMut<'_, f32>,
    ) {
        if rule.is_plain() {
            return self.route_backward(
                probabilities,
                experts,
                weights,
                per_token,
                rule.normalise,
                d_weights,
                balance,
                d_logits,
            );
        }
        let Backend::Cpu(cpu) = &self.backend else { unreachable!("a GPU has the plain rule alone") };
        assert!(balance.is_none(), "only the plain rule is balanced");
        assert_eq!(d_logits.shape(), probabilities.shape(), "logits of experts");
        let choices = probabilities.rows * per_token;
        assert_eq!([experts.len(), weights.len(), d_weights.len()], [choices; 3], "chosen experts");
        let normalise = rule.normalise;
        let route = RouteBackward {
            probabilities,
            experts,
            weights,
            per_token,
            normalise,
            d_weights,
            balance,
            d_logits,
        };
        cpu.time(Part::Memory, || cpu.route_by_backward(rule, route));
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
        balance: Option<Balance<'_>>,
        d_logits: MatrixMut<'_, f32>,
    ) {
        assert_eq!(d_logits.shape(), probabilities.shape(), "logits of experts");
        let choices = probabilities.rows * per_token;
        assert_eq!([experts.len(), weights.len(), d_weights.len()], [choices; 3], "chosen experts");
        if let Some(balance) = &balance {
            assert_eq!(balance.shares.columns, probabilities.columns, "shares of experts");
            assert_eq!(balance.counted.len(), probabilities.rows, "tokens that count");
        }
        let route = RouteBackward {
            probabilities,
            experts,
            weights,
            per_token,
            normalise,
            d_weights,
            balance,
            d_logits,
        };
        on_backend!(self, Memory, route_backward(route));
    }

    /// Each expert's choices by those that are `counted` over the number of all `tokens` that count, of which some may be elsewhere.
    pub fn expert_shares(
        &self,
        experts: View<'_, u32>,
        per_token: usize,
        counted: View<'_, u32>,
        tokens: usize,
        shares: ViewMut<'_, f32>,
    ) {
        assert_eq!(experts.len(), counted.len() * per_token, "chosen experts");
        let counts = ExpertShares { experts, per_token, counted, tokens, shares };
        on_backend!(self, Memory, expert_shares(counts));
    }
}

#[cfg(test)]
mod tests;
