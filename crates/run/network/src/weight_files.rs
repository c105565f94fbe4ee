//! The weights of a folder in safetensors files, tensor by tensor, without a network in memory.

use std::path::{Path, PathBuf};

use bedplate_transformer::Family;

use crate::names::TensorNames;
use crate::safetensors::{files_of, packed_parts, read_packed, read_tensor};
use crate::table::Tensor;
use crate::{NetworkError, SafetensorsFile};

/// The open files of a model.
#[derive(Debug)]
pub struct WeightFiles {
    path: PathBuf,
    files: Vec<SafetensorsFile>,
    prefix: &'static str,
}

impl WeightFiles {
    /// Opens a file, or a folder with `model.safetensors` or an index of several files.
    pub fn open(path: &Path, family: Family) -> Result<Self, NetworkError> {
        let files =
            files_of(path)?.iter().map(|file| SafetensorsFile::open(file)).collect::<Result<_, _>>()?;
        Ok(Self { path: path.to_owned(), files, prefix: TensorNames::of(family).optional_prefix() })
    }

    /// A whole tensor as a matrix of outputs by inputs. An error where it is missing, has another shape or holds what is no number.
    pub fn read(&self, tensor: &Tensor) -> Result<Vec<f32>, NetworkError> {
        let short = tensor.name.strip_prefix(self.prefix);
        for name in [Some(tensor.name.as_str()), short].into_iter().flatten() {
            if let Some(file) = self.files.iter().find(|file| file.tensors().contains_key(name)) {
                return read_tensor(&self.files, file, name, tensor);
            }
        }
        if let Some(parts) = packed_parts(&self.files, &tensor.name) {
            return read_packed(parts, tensor);
        }
        Err(NetworkError::MissingTensors { path: self.path.clone(), first: tensor.name.clone(), count: 1 })
    }
}
