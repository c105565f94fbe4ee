//! The weights that are trained and the weights to compute with: the same in f32, a rounded copy in bf16.

use bedplate_kernels::{Bf16, Device, Element, ViewMut};
use bedplate_network::{Network, Weights};

/// Master weights in f32, and the copy that bf16 arithmetic uses.
pub struct Parameters {
    master: Weights<f32>,
    copy: Option<Weights<Bf16>>,
}

/// A format that training can compute in.
pub trait Trained: Element {
    fn has_copy() -> bool;
    /// The weights to compute with.
    fn working(parameters: &Parameters) -> &Weights<Self>;
    fn working_mut(parameters: &mut Parameters) -> &mut Weights<Self>;
}

impl Trained for f32 {
    fn has_copy() -> bool {
        false
    }

    fn working(parameters: &Parameters) -> &Weights<Self> {
        &parameters.master
    }

    fn working_mut(parameters: &mut Parameters) -> &mut Weights<Self> {
        &mut parameters.master
    }
}

const HAS_COPY: &str = "parameters of a bf16 run have a copy";

impl Trained for Bf16 {
    fn has_copy() -> bool {
        true
    }

    fn working(parameters: &Parameters) -> &Weights<Self> {
        parameters.copy.as_ref().expect(HAS_COPY)
    }

    fn working_mut(parameters: &mut Parameters) -> &mut Weights<Self> {
        parameters.copy.as_mut().expect(HAS_COPY)
    }
}

impl Parameters {
    pub fn zeros<E: Trained>(device: &Device, network: &Network) -> Self {
        let copy = E::has_copy().then(|| Weights::zeros(device, network));
        Self { master: Weights::zeros(device, network), copy }
    }

    pub fn master(&self) -> &Weights<f32> {
        &self.master
    }

    /// A caller that changes master weights must call [`Parameters::round`] afterwards.
    pub fn master_mut(&mut self) -> &mut Weights<f32> {
        &mut self.master
    }

    /// A block's master weights and their copy.
    pub fn block_mut(&mut self, index: usize) -> (ViewMut<'_, f32>, Option<ViewMut<'_, Bf16>>) {
        (self.master.block_mut(index), self.copy.as_mut().map(|copy| copy.block_mut(index)))
    }

    /// Rounds the master weights into the copy.
    pub fn round(&mut self, device: &Device) {
        if let Some(copy) = &mut self.copy {
            copy.convert_from(device, &self.master);
        }
    }

    pub fn bytes(&self) -> usize {
        self.master.bytes() + self.copy.as_ref().map_or(0, Weights::bytes)
    }
}
