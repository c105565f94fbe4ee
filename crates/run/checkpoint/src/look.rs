//! What lies at an address that a person typed: a checkpoint, or a place with several.

use std::path::Path;
use std::time::Duration;

use crate::checkpoint::looks_like_one;
use crate::{Checkpoint, CheckpointError, Checkpoints, Keep, Listed, Store};

/// What was found.
#[derive(Debug)]
pub enum Look {
    One(Box<Checkpoint>),
    /// Oldest first, good or not.
    Many(Vec<Listed>),
}

impl Look {
    /// Looks at a checkpoint, a folder or prefix with checkpoints, or the output folder of a run.
    pub fn at(address: &str) -> Result<Self, CheckpointError> {
        let path = Path::new(address);
        if address.starts_with("s3://") {
            return match Checkpoint::open(address) {
                Ok(checkpoint) => Ok(Look::One(Box::new(checkpoint))),
                Err(CheckpointError::Damaged { what, .. }) if what.ends_with("is missing") => {
                    Self::list(address)
                }
                Err(error) => Err(error),
            };
        }
        if looks_like_one(path) {
            return Ok(Look::One(Box::new(Checkpoint::open(address)?)));
        }
        let inner = path.join("checkpoints");
        Self::list(if inner.is_dir() { inner.to_string_lossy() } else { address.into() }.as_ref())
    }

    fn list(address: &str) -> Result<Self, CheckpointError> {
        let listed = all(address)?.list()?;
        if listed.is_empty() {
            return Err(CheckpointError::Nothing { place: address.to_owned() });
        }
        Ok(Look::Many(listed))
    }

    /// The checkpoint, or the newest of several that is good.
    pub fn newest(self) -> Result<Checkpoint, CheckpointError> {
        let listed = match self {
            Look::One(checkpoint) => return Ok(*checkpoint),
            Look::Many(listed) => listed,
        };
        let mut last = None;
        for Listed { opened, .. } in listed.into_iter().rev() {
            match opened.and_then(|checkpoint| checkpoint.verify().map(|()| checkpoint)) {
                Ok(checkpoint) => return Ok(checkpoint),
                Err(error) => last = last.or(Some(error)),
            }
        }
        Err(last.unwrap_or(CheckpointError::Nothing { place: String::new() }))
    }
}

fn all(address: &str) -> Result<Checkpoints, CheckpointError> {
    let keep = Keep { count: usize::MAX, age: Duration::ZERO };
    Ok(Checkpoints::new(Path::new("."), Store::open(address)?, keep))
}
