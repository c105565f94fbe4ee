//! A model, a machine and a workload, prepared once and then priced under many layouts.

use bedplate_layout::{ComputePrecision, Ends, Layout, Schedule, Sharding, StageLayers};
use bedplate_transformer::{Layer, Transformer};

use crate::collective::MachineLinks;
use crate::host::HostModel;
use crate::kernel::Kernels;
use crate::overlap::Contention;
use crate::profile::Profile;
use crate::{Constants, ExpertRouting, Hardware, LayerKey, PerfError, PredictedStep, Workload};

/// Everything that does not depend on the layout, as plain numbers.
#[derive(Debug, Clone)]
pub struct Problem {
    pub(crate) hardware: Hardware,
    pub(crate) workload: Workload,
    pub(crate) constants: Constants,
    pub(crate) profile: Profile,
    pub(crate) kernels: Kernels,
    pub(crate) links: MachineLinks,
    pub(crate) contention: Contention,
    /// Set for a host that trains by itself; then nothing else here is used.
    pub(crate) host: Option<HostModel>,
    /// Each kind of layer with its share of all layers.
    pub(crate) kinds: Vec<(Layer, f64)>,
    /// Layers, including those of trained prediction modules.
    pub(crate) layers: f64,
    /// Those of prediction modules, which are on the last stage.
    pub(crate) modules: u32,
    /// The first layers, where they are of a kind that no other is, such as the dense ones of DeepSeek; else none.
    pub(crate) leading: f64,
    pub(crate) hidden: f64,
    pub(crate) vocab: f64,
    /// Query heads of the first layer.
    pub(crate) heads: f64,
    /// Passes through the head: 1, and 1 more for each prediction module.
    pub(crate) predictions: f64,
    pub(crate) is_mixture: bool,
    pub(crate) has_tied_embeddings: bool,
}

/// How layers are spread over stages and ranks: the part of a layout that [`crate::LayerCosts`] leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    pub pipeline: u32,
    pub virtual_stages: u32,
    pub ends: Ends,
    pub schedule: Schedule,
    pub data: u32,
    pub sharding: Sharding,
}

impl Grid {
    pub fn of(layout: &Layout) -> Self {
        Self {
            pipeline: layout.pipeline,
            virtual_stages: layout.virtual_stages,
            ends: layout.ends,
            schedule: layout.schedule,
            data: layout.data,
            sharding: layout.sharding,
        }
    }
}

impl Problem {
    pub fn new(
        model: &Transformer,
        hardware: &Hardware,
        workload: &Workload,
        constants: &Constants,
    ) -> Result<Self, PerfError> {
        if workload.global_batch == 0 || workload.sequence == 0 {
            return Err(PerfError::EmptyStep { sequences: workload.global_batch, tokens: workload.sequence });
        }
        if let ExpertRouting::Skewed(peak) = workload.routing
            && !(peak.is_finite() && peak >= 1.0)
        {
            return Err(PerfError::BadRouting { peak: peak.to_string() });
        }
        let host = HostModel::of(model, hardware, workload)?;
        let profile = Profile::new(workload.stack, constants);
        let trains_modules = workload.trains_prediction && host.is_none();
        let modules = if trains_modules { model.prediction_layers as f64 } else { 0.0 };
        let layers = model.layer_count() as f64 + modules;
        let last = model.runs.last().map(|run| run.layer);
        let extra = |layer: &Layer| if last == Some(*layer) { modules } else { 0.0 };
        let kinds = model.layer_kinds();
        let kinds = kinds.iter().map(|kind| (kind.layer, (kind.count as f64 + extra(&kind.layer)) / layers));
        Ok(Self {
            hardware: *hardware,
            workload: *workload,
            constants: *constants,
            profile,
            kernels: Kernels::new(
                hardware,
                constants,
                profile.rate,
                profile.attention,
                profile.gradient_write,
            ),
            links: MachineLinks::new(hardware, constants),
            contention: Contention {
                compute: constants.contention_compute,
                network: constants.contention_network,
            },
            host,
            kinds: kinds.collect(),
            layers,
            modules: modules as u32,
            leading: match model.runs.as_slice() {
                [first, _] => first.count as f64,
                _ => 0.0,
            },
            hidden: model.hidden as f64,
            vocab: model.vocab as f64,
            heads: model.runs.first().map_or(1.0, |run| run.layer.attention.heads() as f64),
            predictions: 1.0 + modules,
            is_mixture: model.is_mixture(),
            has_tied_embeddings: model.has_tied_embeddings,
        })
    }

    pub fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    pub fn is_mixture(&self) -> bool {
        self.is_mixture
    }

    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Prices one layout. The same as [`Problem::combine`] of its [`Problem::layer_costs`].
    pub fn predict(&self, layout: &Layout) -> Result<PredictedStep, PerfError> {
        self.check(layout)?;
        self.check_precision(layout.precision)?;
        let costs = self.layer_costs(LayerKey::of(layout));
        Ok(self.combine(&costs, &Grid::of(layout)))
    }

    /// Whether steps in a number format can be priced: the chip must support it, or a host be measured in it. fp32 is
    /// never priced on a chip, because weights and activations are counted in 16 bits there. [`Problem::combine`] does
    /// not check this.
    pub fn check_precision(&self, precision: ComputePrecision) -> Result<(), PerfError> {
        if self.hardware.has(precision) {
            return Ok(());
        }
        let known = FORMATS.into_iter().filter(|(_, format)| self.hardware.has(*format));
        let known: Vec<&str> = known.map(|(name, _)| name).collect();
        let format =
            FORMATS.into_iter().find(|(_, format)| *format == precision).map_or("", |(name, _)| name);
        Err(PerfError::UnsupportedPrecision { format, known: known.join(", ") })
    }

    /// Layers of the stages. Prediction modules count as layers of the last one.
    pub(crate) fn split(&self, pipeline: u32, ends: Ends) -> Option<StageLayers> {
        let ends = Ends { last: ends.last.map(|last| last.saturating_add(self.modules)), ..ends };
        let ends = if pipeline == 1 { Ends::default() } else { ends };
        StageLayers::new(self.layers as u64, pipeline, ends)
    }

    /// What pricing itself needs; all other rules are `Layout::refusals`.
    fn check(&self, layout: &Layout) -> Result<(), PerfError> {
        let impossible = |reason: String| PerfError::ImpossibleLayout { layout: layout.to_string(), reason };
        if let Some(refusal) = layout.refusals_without_model(None).first() {
            return Err(impossible(refusal.to_string()));
        }
        let missing =
            self.host.as_ref().and_then(|host| host.unmeasured(&LayerKey::of(layout), &Grid::of(layout)));
        if let Some((operation, ranks)) = missing {
            return Err(PerfError::CollectivesNotMeasured { operation: operation.name(), ranks });
        }
        let ranks = u64::from(layout.data) * u64::from(layout.micro_batch);
        if ranks > self.workload.global_batch {
            let batch = self.workload.global_batch;
            return Err(impossible(format!(
                "a batch of {batch} sequences has fewer than one for each of {ranks}"
            )));
        }
        if self.split(layout.pipeline, layout.ends).is_none() {
            return Err(impossible(format!("{} stages for {} layers", layout.pipeline, self.layers)));
        }
        Ok(())
    }
}

const FORMATS: [(&str, ComputePrecision); 5] = [
    ("fp32", ComputePrecision::Fp32),
    ("bf16", ComputePrecision::Bf16),
    ("fp16", ComputePrecision::Fp16),
    ("fp8", ComputePrecision::Fp8),
    ("fp4", ComputePrecision::Fp4),
];

/// Predicts one training step: memory and time by part.
///
/// For many layouts of one problem build a [`Problem`] and reuse its [`crate::LayerCosts`].
pub fn predict(
    model: &Transformer,
    hardware: &Hardware,
    layout: &Layout,
    workload: &Workload,
    constants: &Constants,
) -> Result<PredictedStep, PerfError> {
    Problem::new(model, hardware, workload, constants)?.predict(layout)
}
