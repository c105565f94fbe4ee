//! Routing of tokens to experts.

use super::Cuda;
use super::kernel::{THREADS, address, blocks_of, flag, float, word};
use super::source::{KernelFormat, KernelSource::Experts};
use crate::device::{ExpertShares, RouteBackward, RouteForward};

/// Rows of a block, each with a warp.
const ROWS: usize = 4;

impl Cuda {
    pub(crate) fn route(&self, route: RouteForward<'_>) {
        let RouteForward { logits, per_token, normalise, probabilities, experts, weights } = route;
        let (from, to, (rows, columns)) = (self.rows(&logits), self.rows_mut(&probabilities), logits.shape());
        let mut launch = blocks_of(rows.div_ceil(ROWS), 32 * ROWS);
        launch.shared = ROWS * columns;
        let name = if columns <= 512 { "route_few" } else { "route" };
        self.kernel(Experts, [KernelFormat::F32; 3], name).launch(
            launch,
            &[
                address(from.address),
                word(from.stride),
                word(rows),
                word(columns),
                word(per_token),
                flag(normalise),
                address(to.address),
                word(to.stride),
                address(self.at_mut(&experts)),
                address(self.at_mut(&weights)),
            ],
        );
    }

    pub(crate) fn route_backward(&self, route: RouteBackward<'_>) {
        let RouteBackward { probabilities, per_token, normalise, balance, d_logits, .. } = route;
        let (from, to) = (self.rows(&probabilities), self.rows_mut(&d_logits));
        let ((rows, columns), formats) = (probabilities.shape(), [KernelFormat::F32; 3]);
        let pressures = self.small.of(&self.context, 4 * columns.max(1));
        if let Some(balance) = balance {
            let (shares, layers) = (self.rows(&balance.shares), balance.layers as f32);
            let scale = balance.coefficient * columns as f32 / balance.tokens.max(1) as f32;
            self.kernel(Experts, formats, "pressures").launch(
                blocks_of(columns.div_ceil(THREADS), THREADS),
                &[
                    address(shares.address),
                    word(shares.stride),
                    word(balance.shares.rows),
                    word(columns),
                    float(scale / (layers * layers)),
                    address(pressures),
                ],
            );
        }
        self.kernel(Experts, formats, "route_backward").launch(
            blocks_of(rows.div_ceil(ROWS), 32 * ROWS),
            &[
                address(from.address),
                word(from.stride),
                word(rows),
                word(columns),
                address(self.at(route.experts)),
                address(self.at(route.weights)),
                address(self.at(route.d_weights)),
                word(per_token),
                flag(normalise),
                address(pressures),
                address(balance.map_or(0, |balance| self.at(balance.counted))),
                address(to.address),
                word(to.stride),
            ],
        );
    }

    pub(crate) fn expert_shares(&self, counts: ExpertShares<'_>) {
        let ExpertShares { experts, per_token, counted, tokens, shares } = counts;
        self.kernel(Experts, [KernelFormat::F32; 3], "expert_shares").launch(
            blocks_of(shares.len(), THREADS),
            &[
                address(self.at(experts)),
                word(per_token),
                word(counted.len()),
                address(self.at(counted)),
                float(tokens.max(1) as f32),
                address(self.at_mut(&shares)),
            ],
        );
    }
}
