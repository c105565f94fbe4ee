//! Every legal layout of a setup, as a list that is never materialised.
//!
//! Layouts that cut a layer the same way form a *family*: one [`LayerKey`], priced once, and a list of grids
//! (stages, chunks, data ranks, sharding) to combine it with. Families that differ only in what grids
//! ignore share one list. Degrees that multiply to the number of GPUs are tried in rising order; a degree
//! that breaks a rule by itself is cut before it is combined, and every cut is counted with its rule.
//!
//! Values that mean the same are listed once: with one data rank there is nothing to shard, and groups as
//! large as all data ranks are plain `zero3`.

use std::ops::Range;

use bedplate_layout::{Ends, Layout, LayoutRefusal, Schedule, Sharding};
use bedplate_perf::{Generation, Grid, LayerKey, Problem};

use crate::axes::{allowed, degrees};
use crate::nearest::{MOST_GPUS, nearest_legal};
use crate::{Axes, Refusals, SearchError, Setup, ShardingKind};

/// The legal layouts of one setup, ready to be priced.
#[derive(Debug, Clone)]
pub struct Space {
    pub(crate) problem: Problem,
    pub(crate) families: Vec<LayoutFamily>,
    grids: Vec<Grid>,
    refusals: Refusals,
    layouts: u64,
}

/// Layouts that cut a layer the same way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayoutFamily {
    pub(crate) key: LayerKey,
    first_grid: u32,
    grid_count: u32,
    /// How many layouts come before this family.
    first_layout: u64,
}

impl Space {
    /// Enumerates the space, at about a microsecond per family; nothing is priced yet.
    pub fn new(setup: &Setup<'_>, axes: &Axes) -> Result<Self, SearchError> {
        if setup.gpus() == 0 {
            return Err(SearchError::NoGpus { model: setup.model.name.clone() });
        }
        if setup.gpus() > MOST_GPUS {
            let nearest = nearest_legal(setup, axes, None);
            return Err(SearchError::TooManyGpus { gpus: setup.gpus(), nearest });
        }
        let problem = setup.problem()?;
        for precision in &axes.precision {
            problem.check_precision(*precision)?;
        }
        let on_host = (setup.hardware.generation == Generation::Host).then(|| axes.data_parallel());
        let mut builder = Builder::new(setup, on_host.as_ref().unwrap_or(axes));
        builder.enumerate();
        builder.refusals.sort();
        Ok(Self {
            problem,
            layouts: builder.layouts,
            families: builder.families,
            grids: builder.grids,
            refusals: builder.refusals,
        })
    }

    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// How many layouts there are.
    pub fn len(&self) -> u64 {
        self.layouts
    }

    pub fn is_empty(&self) -> bool {
        self.layouts == 0
    }

    /// What was cut and why.
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// The whole space as a slice for [`Space::price`].
    pub fn whole(&self) -> Range<usize> {
        0..self.families.len()
    }

    /// The space in at most `parts` slices of nearly equal work, for callers with several threads.
    pub fn slices(&self, parts: usize) -> Vec<Range<usize>> {
        let parts = parts.max(1);
        let mut slices = Vec::with_capacity(parts);
        let mut start = 0;
        for part in 1..=parts as u64 {
            let target = (u128::from(self.layouts) * u128::from(part) / parts as u128) as u64;
            let end = self.families.partition_point(|family| family.first_layout < target).max(start);
            let end = if part == parts as u64 { self.families.len() } else { end };
            if end > start {
                slices.push(start..end);
            }
            start = end;
        }
        slices
    }

    /// The layout at a place of the enumeration, `index < len()`. Takes a binary search.
    pub fn layout(&self, index: u64) -> Option<Layout> {
        if index >= self.layouts {
            return None;
        }
        let place = self.families.partition_point(|family| family.first_layout <= index) - 1;
        let family = &self.families[place];
        let grid = self.grids_of(family)[(index - family.first_layout) as usize];
        Some(layout_of(&family.key, &grid))
    }

    /// Every layout, in the order of enumeration.
    pub fn layouts(&self) -> impl Iterator<Item = Layout> {
        self.families
            .iter()
            .flat_map(|family| self.grids_of(family).iter().map(|grid| layout_of(&family.key, grid)))
    }

    pub(crate) fn grids_of(&self, family: &LayoutFamily) -> &[Grid] {
        &self.grids[family.first_grid as usize..][..family.grid_count as usize]
    }
}

/// The layout that a family and a grid make.
pub(crate) fn layout_of(key: &LayerKey, grid: &Grid) -> Layout {
    Layout {
        data: grid.data,
        tensor: key.tensor,
        is_sequence_parallel: key.is_sequence_parallel,
        context: key.context,
        pipeline: grid.pipeline,
        virtual_stages: grid.virtual_stages,
        ends: grid.ends,
        schedule: grid.schedule,
        expert: key.expert,
        expert_tensor: key.expert_tensor,
        sharding: grid.sharding,
        micro_batch: key.micro_batch,
        recompute: key.recompute,
        precision: key.precision,
    }
}

/// A stage count with the remaining data ranks.
#[derive(Debug, Clone, Copy)]
struct Trunk {
    pipeline: u32,
    data: u32,
}

/// Expert degrees that the model allows.
#[derive(Debug, Clone, Copy)]
struct Experts {
    expert: u32,
    tensor: u32,
}

struct Builder<'a> {
    setup: &'a Setup<'a>,
    axes: &'a Axes,
    gpus: u32,
    global_batch: u64,
    families: Vec<LayoutFamily>,
    grids: Vec<Grid>,
    refusals: Refusals,
    layouts: u64,
    chunks: Vec<(u32, Vec<u32>)>,
}

impl<'a> Builder<'a> {
    fn new(setup: &'a Setup<'a>, axes: &'a Axes) -> Self {
        Self {
            setup,
            axes,
            gpus: setup.gpus(),
            global_batch: setup.workload.global_batch,
            families: Vec::new(),
            grids: Vec::new(),
            refusals: Refusals::default(),
            layouts: 0,
            chunks: Vec::new(),
        }
    }

    fn enumerate(&mut self) {
        let all = degrees(self.gpus.into());
        let tensors =
            self.legal(&self.axes.tensor, &all, |degree| Layout { tensor: degree, ..Layout::default() });
        let pipelines =
            self.legal(&self.axes.pipeline, &all, |degree| Layout { pipeline: degree, ..Layout::default() });
        let contexts =
            self.legal(&self.axes.context, &all, |degree| Layout { context: degree, ..Layout::default() });
        let experts = self.legal_experts();
        self.chunks = pipelines.iter().map(|pipeline| (*pipeline, self.legal_chunks(*pipeline))).collect();
        for tensor in &tensors {
            for context in &contexts {
                let inner = u64::from(*tensor) * u64::from(*context);
                if u64::from(self.gpus).is_multiple_of(inner) {
                    self.add_cut(*tensor, *context, &pipelines, &experts);
                }
            }
        }
    }

    /// Degrees that break no rule of the model or the sequence by themselves.
    fn legal(&mut self, list: &Option<Vec<u32>>, all: &[u32], layout: impl Fn(u32) -> Layout) -> Vec<u32> {
        let mut legal = allowed(list, all.to_vec());
        let batch = Some(self.setup.batch());
        legal.retain(|degree| {
            let example = layout(*degree);
            !self.refusals.add_first(example, &example.refusals(self.setup.model, None, batch))
        });
        legal
    }

    fn legal_experts(&mut self) -> Vec<Experts> {
        if !self.setup.model.is_mixture() {
            return vec![Experts { expert: 1, tensor: 1 }];
        }
        let all = degrees(self.gpus.into());
        let model = self.setup.model;
        // An expert degree needs as many ranks in its stage; data ranks provide them.
        let with_ranks = |expert: u32, tensor: u32| Layout {
            expert,
            expert_tensor: tensor,
            data: expert.saturating_mul(tensor),
            ..Layout::default()
        };
        let mut keep = |list: &Option<Vec<u32>>, layout: &dyn Fn(u32) -> Layout| {
            let mut legal = allowed(list, all.clone());
            legal.retain(|degree| {
                let example = layout(*degree);
                !self.refusals.add_first(example, &example.refusals(model, None, None))
            });
            legal
        };
        let experts = keep(&self.axes.expert, &|degree| with_ranks(degree, 1));
        let tensors = keep(&self.axes.expert_tensor, &|degree| with_ranks(1, degree));
        let pairs = experts
            .iter()
            .flat_map(|expert| tensors.iter().map(|tensor| Experts { expert: *expert, tensor: *tensor }));
        pairs
            .filter(|pair| pair.expert.checked_mul(pair.tensor).is_some_and(|ranks| ranks <= self.gpus))
            .collect()
    }

    /// Chunk counts beyond 1 that are tried for `pipeline` stages. Where they cut the layers evenly, all that do; else
    /// those of the longest stage, and powers of two.
    fn legal_chunks(&self, pipeline: u32) -> Vec<u32> {
        if pipeline == 1 {
            return Vec::new();
        }
        let layers = self.setup.model.layer_count();
        let mut chunks = degrees(layers.div_ceil(pipeline.into()));
        if !layers.is_multiple_of(pipeline.into()) {
            chunks.extend([2, 4, 8, 16]);
            chunks.sort_unstable();
            chunks.dedup();
        }
        let mut chunks = allowed(&self.axes.virtual_stages, chunks);
        chunks.retain(|chunk| *chunk > 1 && u64::from(*chunk) * u64::from(pipeline) <= layers);
        chunks
    }

    /// All families of one tensor and context degree.
    fn add_cut(&mut self, tensor: u32, context: u32, pipelines: &[u32], experts: &[Experts]) {
        let trunks = self.trunks(tensor, context, pipelines);
        let sequence_parallel = self.sequence_parallel(tensor, context);
        for micro_batch in self.micro_batches(&trunks) {
            // Pairs of expert degrees with the same product have the same grids.
            let mut lists: Vec<(u32, Range<usize>)> = Vec::new();
            for pair in experts {
                let ranks = pair.expert * pair.tensor;
                let known =
                    lists.iter().find(|(product, _)| *product == ranks).map(|(_, range)| range.clone());
                let list = known.unwrap_or_else(|| {
                    let list = self.add_grids(tensor, context, micro_batch, *pair, &trunks);
                    lists.push((ranks, list.clone()));
                    list
                });
                if !list.is_empty() {
                    self.add_families(tensor, context, micro_batch, *pair, &sequence_parallel, list);
                }
            }
        }
    }

    /// Stage counts whose remaining data ranks divide the batch.
    fn trunks(&mut self, tensor: u32, context: u32, pipelines: &[u32]) -> Vec<Trunk> {
        let mut trunks = Vec::new();
        for pipeline in pipelines {
            let inner = u64::from(tensor) * u64::from(context) * u64::from(*pipeline);
            if !u64::from(self.gpus).is_multiple_of(inner) {
                continue;
            }
            let data = (u64::from(self.gpus) / inner) as u32;
            if self.global_batch.is_multiple_of(data.into()) {
                trunks.push(Trunk { pipeline: *pipeline, data });
            } else {
                let example = Layout { data, tensor, context, pipeline: *pipeline, ..Layout::default() };
                let refusal = LayoutRefusal::BatchDoesNotDivide {
                    data,
                    micro_batch: 1,
                    global_batch: self.global_batch,
                };
                self.refusals.add(example, refusal);
            }
        }
        trunks
    }

    fn sequence_parallel(&mut self, tensor: u32, context: u32) -> Vec<bool> {
        if tensor == 1 {
            return vec![false];
        }
        let batch = Some(self.setup.batch());
        let mut choices = self.axes.sequence_parallel.clone();
        choices.retain(|is_sequence_parallel| {
            let example =
                Layout { tensor, context, is_sequence_parallel: *is_sequence_parallel, ..Layout::default() };
            !self.refusals.add_first(example, &example.refusals(self.setup.model, None, batch))
        });
        choices
    }

    /// Micro-batch sizes that divide what one data rank sees, for any of the trunks.
    fn micro_batches(&self, trunks: &[Trunk]) -> Vec<u32> {
        let Some(most) = trunks.iter().map(|trunk| self.global_batch / u64::from(trunk.data)).max() else {
            return Vec::new();
        };
        let all = degrees(self.global_batch).into_iter().filter(|size| u64::from(*size) <= most);
        allowed(&self.axes.micro_batch, all.collect())
    }

    /// Writes the grids of one cut and micro-batch; returns their range.
    fn add_grids(
        &mut self,
        tensor: u32,
        context: u32,
        micro_batch: u32,
        experts: Experts,
        trunks: &[Trunk],
    ) -> Range<usize> {
        let start = self.grids.len();
        for Trunk { pipeline, data } in trunks.iter().copied() {
            let per_rank = self.global_batch / u64::from(data);
            if !per_rank.is_multiple_of(micro_batch.into()) {
                continue;
            }
            let Experts { expert, tensor: expert_tensor } = experts;
            let ranks = tensor * context * data;
            if !ranks.is_multiple_of(expert * expert_tensor) {
                let example =
                    Layout { data, tensor, context, pipeline, expert, expert_tensor, ..Layout::default() };
                self.refusals
                    .add(example, LayoutRefusal::ExpertsDoNotDivideStage { expert, expert_tensor, ranks });
                continue;
            }
            let chunks = self.chunks_filled(pipeline, per_rank / u64::from(micro_batch), data, micro_batch);
            let plain = self.axes.virtual_stages.as_ref().is_none_or(|list| list.contains(&1)).then_some(1);
            let shardings =
                shardings(&self.axes.sharding, tensor, data * context, self.setup.hardware.domain);
            for virtual_stages in plain.into_iter().chain(chunks) {
                let (ends, schedule) = (Ends::default(), Schedule::default());
                let grid = |sharding: &Sharding| Grid {
                    pipeline,
                    virtual_stages,
                    ends,
                    schedule,
                    data,
                    sharding: *sharding,
                };
                self.grids.extend(shardings.iter().map(grid));
            }
        }
        start..self.grids.len()
    }

    /// Chunk counts that can be used when a step has `micro_batches` of them: interleaving goes by rounds.
    fn chunks_filled(&mut self, pipeline: u32, micro_batches: u64, data: u32, micro_batch: u32) -> Vec<u32> {
        let chunks =
            self.chunks.iter().find(|(stages, _)| *stages == pipeline).map(|(_, chunks)| chunks.clone());
        let chunks = chunks.unwrap_or_default();
        let Some(first) = chunks.first() else { return chunks };
        if micro_batches.is_multiple_of(pipeline.into()) {
            return chunks;
        }
        let example = Layout { data, pipeline, virtual_stages: *first, micro_batch, ..Layout::default() };
        self.refusals.add(example, LayoutRefusal::MicroBatchesDoNotFillStages { micro_batches, pipeline });
        Vec::new()
    }

    fn add_families(
        &mut self,
        tensor: u32,
        context: u32,
        micro_batch: u32,
        experts: Experts,
        sequence_parallel: &[bool],
        list: Range<usize>,
    ) {
        for is_sequence_parallel in sequence_parallel {
            for recompute in &self.axes.recompute {
                for precision in &self.axes.precision {
                    let key = LayerKey {
                        tensor,
                        is_sequence_parallel: *is_sequence_parallel,
                        context,
                        expert: experts.expert,
                        expert_tensor: experts.tensor,
                        micro_batch,
                        precision: *precision,
                        recompute: *recompute,
                        hides_experts: false,
                    };
                    self.families.push(LayoutFamily {
                        key,
                        first_grid: list.start as u32,
                        grid_count: list.len() as u32,
                        first_layout: self.layouts,
                    });
                    self.layouts += list.len() as u64;
                }
            }
        }
    }
}

/// What `ranks` ranks with the same weights can split. Groups fill a domain, or several that divide the ranks.
fn shardings(kinds: &[ShardingKind], tensor: u32, ranks: u32, domain: u32) -> Vec<Sharding> {
    if ranks == 1 {
        return vec![Sharding::None];
    }
    let mut shardings = Vec::new();
    for kind in kinds {
        match kind {
            ShardingKind::None => shardings.push(Sharding::None),
            ShardingKind::Optimizer => shardings.push(Sharding::Optimizer),
            ShardingKind::Gradients => shardings.push(Sharding::Gradients),
            ShardingKind::Weights => shardings.push(Sharding::Weights),
            ShardingKind::WeightsWithinDomains => {
                let fills = |group: &u32| {
                    let gpus = u64::from(*group) * u64::from(tensor);
                    *group > 1 && *group < ranks && gpus.is_multiple_of(domain.max(1).into())
                };
                shardings
                    .extend(degrees(ranks.into()).into_iter().filter(fills).map(Sharding::WeightsWithin));
            }
        }
    }
    shardings
}
