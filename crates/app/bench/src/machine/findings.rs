//! From samples to the rates of a host.

use bedplate_catalog::{FormatRates, MeasuredRates};
use bedplate_kernels::{Bf16, Device};
use bedplate_units::{Bandwidth, Bytes, FlopRate, Seconds};

use super::fit::{self, Point};
use super::measure::{self, Amount, Sample, Size, Sizes};

/// Everything that was measured.
pub(super) struct Findings {
    pub(super) samples: Vec<Sample>,
    pub(super) rates: MeasuredRates,
    pub(super) limit_fp32: f64,
    pub(super) limit_bf16: f64,
}

/// Measures everything; `report` gets what comes next and the share done.
pub(super) fn measure(device: &Device, report: &dyn Fn(&str, f64)) -> Findings {
    report("the limit of arithmetic", 0.0);
    let (limit_fp32, sets) = (device.arithmetic_limit(), Sizes::of(device).sets);
    let operator = measure::operator(device);
    report("fp32 products", 0.05);
    let mut samples = measure::products::<f32>(device);
    report("bf16 products", 0.25);
    samples.extend(measure::products::<Bf16>(device));
    report("attention", 0.45);
    samples.extend(measure::attention::<f32>(device));
    samples.extend(measure::attention::<Bf16>(device));
    report("streams", 0.6);
    let wide = sets.map(|set| measure::streams::<f32>(device, set));
    let narrow = [sets[0], sets[4]].map(|set| measure::streams::<Bf16>(device, set));
    report("copy, losses and optimizer", 0.85);
    let [copy, losses, optimizer] =
        [measure::copy(device), measure::losses(device), measure::optimizer(device)];
    let bandwidth = |sample: &Sample| Bandwidth::new(sample.rate());
    // Small sets of a GPU are slow because kernels start, which counts for each operator; its cache is not seen.
    let ends = |near: &Sample, far: &Sample| [if device.is_cpu() { near } else { far }.rate(), far.rate()];
    let held = if device.is_cpu() { cache(&wide) } else { 0.0 };
    let rates = MeasuredRates {
        threads: device.threads() as u32,
        fp32: Some(format_rates(&samples, "fp32", operator, ends(&wide[0], &wide[4]))),
        bf16: Some(format_rates(&samples, "bf16", operator, ends(&narrow[0], &narrow[1]))),
        copy: bandwidth(&copy),
        cache: Bytes::new(held),
        losses: bandwidth(&losses),
        optimizer: bandwidth(&optimizer),
        operator: Seconds::new(operator),
    };
    samples.extend(wide.into_iter().chain(narrow).chain([copy, losses, optimizer]));
    report("done", 1.0);
    Findings { samples, rates, limit_fp32, limit_bf16: device.arithmetic_limit_bf16(limit_fp32) }
}

impl Findings {
    /// Sets the limits of arithmetic that were not measured in registers: a GPU's are the peaks of its catalog entry or, where it has none, its fastest products.
    pub(super) fn set_limits(&mut self, fp32: Option<f64>, bf16: Option<f64>) {
        let fastest = |precision: &str| {
            let products = self.samples.iter().filter(|sample| sample.operator == "products");
            products.filter(|sample| sample.precision == precision).map(Sample::rate).fold(0.0, f64::max)
        };
        let limits = (fp32.unwrap_or_else(|| fastest("fp32")), bf16.unwrap_or_else(|| fastest("bf16")));
        (self.limit_fp32, self.limit_bf16) = limits;
    }
}

/// The largest set that streams faster than the mean of the fastest and the slowest.
fn cache(streams: &[Sample]) -> f64 {
    let rates = || streams.iter().map(Sample::rate);
    let middle = (rates().fold(0.0, f64::max) * rates().fold(f64::INFINITY, f64::min)).sqrt();
    let held = streams.iter().filter(|sample| sample.rate() >= middle);
    let sets = held.map(|sample| match sample.size {
        Size::Set(bytes) => bytes,
        _ => 0.0,
    });
    sets.fold(0.0, f64::max)
}

fn format_rates(
    samples: &[Sample],
    precision: &'static str,
    overhead: f64,
    [near, far]: [f64; 2],
) -> FormatRates {
    let points = |operator: &str| -> Vec<Point> {
        let of = samples.iter().filter(|it| it.operator == operator && it.precision == precision);
        of.map(|sample| point(sample, overhead)).collect()
    };
    let (products, attention) = (fit::line(&points("products")), fit::line(&points("attention")));
    let rate = |operator: &str, half: f64| FlopRate::new(fit::rate(&points(operator), half));
    FormatRates {
        products: FlopRate::new(products.rate),
        input_gradients: rate("input_gradients", products.half),
        weight_gradients: rate("weight_gradients", products.half),
        half_size: products.half,
        attention: FlopRate::new(attention.rate),
        attention_backward: rate("attention_backward", attention.half),
        half_keys: attention.half,
        stream: Bandwidth::new(far.min(near)),
        stream_in_cache: Bandwidth::new(near.max(far)),
    }
}

fn point(sample: &Sample, overhead: f64) -> Point {
    let smallness = match sample.size {
        Size::Linear(sides) => sides.iter().map(|side| 1.0 / *side as f64).sum(),
        Size::Sequence(tokens) => 2.0 / (tokens + 1) as f64,
        Size::Set(_) => 0.0,
    };
    let Amount::Flops(flops) = sample.amount else { unreachable!("only arithmetic is fitted") };
    // Dispatch overhead is counted separately; it cannot be the whole time.
    let seconds = (sample.seconds - overhead).max(0.5 * sample.seconds);
    Point { per_flop: seconds / flops, smallness }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(set: f64, rate: f64) -> Sample {
        Sample {
            operator: "stream",
            precision: "fp32",
            size: Size::Set(set),
            seconds: 1.0,
            amount: Amount::Bytes(rate),
        }
    }

    #[test]
    fn the_cache_ends_where_the_rate_falls() {
        let falling = [(16e6, 80e9), (32e6, 70e9), (64e6, 30e9), (512e6, 20e9)];
        assert_eq!(cache(&falling.map(|(set, rate)| stream(set, rate))), 32e6);
        let flat = [(16e6, 20e9), (512e6, 20e9)];
        assert_eq!(cache(&flat.map(|(set, rate)| stream(set, rate))), 512e6, "then it does not matter");
    }

    #[test]
    fn products_of_known_times_give_their_rates() {
        let (rate, half, overhead) = (300e9, 20.0, 5e-6);
        let sample = |operator, slower: f64, sides: [usize; 3]| {
            let flops = 2.0 * sides.iter().product::<usize>() as f64;
            let smallness: f64 = sides.iter().map(|side| 1.0 / *side as f64).sum();
            Sample {
                operator,
                precision: "fp32",
                size: Size::Linear(sides),
                seconds: overhead + slower * flops / rate * (1.0 + half * smallness),
                amount: Amount::Flops(flops),
            }
        };
        let attention = |sequence: usize| Sample {
            operator: "attention",
            precision: "fp32",
            size: Size::Sequence(sequence),
            seconds: overhead + 1.0,
            amount: Amount::Flops(100e9),
        };
        let mut samples: Vec<Sample> = Vec::new();
        for sides in Sizes::OF_PROCESSOR.linears {
            samples.push(sample("products", 1.0, sides));
            samples.push(sample("input_gradients", 1.5, sides));
            samples.push(sample("weight_gradients", 2.0, sides));
        }
        samples.extend([attention(128), attention(1024)]);
        samples.push(Sample { operator: "attention_backward", ..attention(128) });
        let found = format_rates(&samples, "fp32", overhead, [80e9, 20e9]);
        let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-6, "{found}");
        near(found.products.get(), 300e9);
        near(found.input_gradients.get(), 200e9);
        near(found.weight_gradients.get(), 150e9);
        near(found.half_size, 20.0);
        near(found.attention.get(), 100e9);
        near(found.attention_backward.get(), 100e9);
    }
}
