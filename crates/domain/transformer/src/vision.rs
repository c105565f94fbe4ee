//! The vision encoder in front of a language model: its size, and what an image becomes in it.

/// A transformer over patches of an image, whose outputs are projected to tokens of the language model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vision {
    pub layers: u64,
    pub hidden: u64,
    pub heads: u64,
    /// Width of the MLP.
    pub width: u64,
    pub is_gated: bool,
    /// Pixels of a patch's side.
    pub patch: u64,
    pub sizing: Sizing,
    pub windows: Option<Windows>,
    /// All parameters, those of the projection included.
    pub parameters: u64,
    /// Of these, those that each token of the language model is multiplied with.
    pub projection: u64,
}

/// How an image becomes patches and tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizing {
    /// Every image is resized to a square of `side` pixels and becomes as many tokens.
    Square { side: u64, tokens: u64 },
    /// Sides are rounded to whole squares of `merged` by `merged` patches, each a token; larger and smaller images are resized.
    Native { merged: u64, least_pixels: u64, most_pixels: u64 },
}

/// Attention inside windows of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Patches of a window.
    pub patches: u64,
    /// Layers that attend to the whole image nevertheless.
    pub full_layers: u64,
}

/// What an encoder makes of one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    pub patches: u64,
    /// Tokens of the prompt.
    pub tokens: u64,
}

impl Vision {
    /// What an image of so many pixels becomes. Sides are at least one pixel.
    pub fn image(&self, width: u32, height: u32) -> Image {
        match self.sizing {
            Sizing::Square { side, tokens } => Image { patches: (side / self.patch).pow(2), tokens },
            Sizing::Native { merged, least_pixels, most_pixels } => {
                let unit = (self.patch * merged) as f64;
                let (width, height) = (f64::from(width.max(1)), f64::from(height.max(1)));
                let rounded = |side: f64| (side / unit).round().max(1.0);
                let pixels = rounded(width) * rounded(height) * unit * unit;
                let (wide, high) = if pixels > most_pixels as f64 {
                    let shrink = (width * height / most_pixels as f64).sqrt();
                    let floored = |side: f64| (side / shrink / unit).floor().max(1.0);
                    (floored(width), floored(height))
                } else if pixels < least_pixels as f64 {
                    let grow = (least_pixels as f64 / (width * height)).sqrt();
                    let raised = |side: f64| (side * grow / unit).ceil();
                    (raised(width), raised(height))
                } else {
                    (rounded(width), rounded(height))
                };
                let tokens = wide as u64 * high as u64;
                Image { patches: tokens * merged * merged, tokens }
            }
        }
    }

    /// FLOPs of the products that encode an image, without attention.
    pub fn product_flops(&self, image: &Image) -> f64 {
        let products = if self.is_gated { 3 } else { 2 };
        let layer = 4 * self.hidden * self.hidden + products * self.hidden * self.width;
        let layers = self.layers as f64 * layer as f64 * image.patches as f64;
        2.0 * (layers + self.projection as f64 * image.tokens as f64)
    }

    /// FLOPs of attention between its patches.
    pub fn attention_flops(&self, image: &Image) -> f64 {
        let patches = image.patches as f64;
        let all = self.layers as f64;
        let (full, keys) = match self.windows {
            Some(windows) => (windows.full_layers as f64, patches.min(windows.patches as f64)),
            None => (all, patches),
        };
        4.0 * self.hidden as f64 * patches * (full * patches + (all - full) * keys)
    }
}
