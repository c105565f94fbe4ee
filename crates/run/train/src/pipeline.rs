//! The order of a pipeline's passes, which `layout` defines for the plan and the run alike.

pub(crate) use bedplate_layout::{Direction, Pass, PipelineStage as Stage, in_flight};
