//! Rotary positions as a `config.json` has them: which layers turn, how much of a head, and how frequencies are stretched to reach
//! further than the model was first trained for.

use std::f64::consts::TAU;
use std::ops::RangeInclusive;

use bedplate_kernels::Pairing;
use bedplate_transformer::{Attention, Keys, ModelError, Reach, Transformer};

use crate::NetworkError;
use crate::family::{RotaryLayers, RotaryPage, UsualYarn};

/// The rotary positions of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryPlan {
    pub schemes: Vec<RotaryScheme>,
    /// For each layer one of the schemes, or none where it has no positions of its own.
    pub of_layers: Vec<Option<usize>>,
}

/// Angular frequencies of the pairs of a head.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryScheme {
    /// Radians per position, one for each pair of numbers that turn.
    pub frequencies: Vec<f64>,
    /// Other frequencies for texts that may be longer than so many tokens.
    pub long: Option<(u64, Vec<f64>)>,
    /// Texts of more tokens have frequencies that depend on their length, which are not computed.
    pub most: Option<u64>,
    /// What turned numbers are multiplied by.
    pub attention_factor: f64,
    pub pairing: Pairing,
}

impl RotaryScheme {
    /// For texts of at most `longest` tokens.
    pub(crate) fn frequencies(&self, longest: usize) -> Result<&[f64], NetworkError> {
        if let Some(most) = self.most.filter(|most| longest as u64 > *most) {
            let feature = format!("the rotary scheme `dynamic` for texts of more than {most} tokens");
            return Err(NetworkError::Unsupported { feature });
        }
        match &self.long {
            Some((beyond, long)) if longest as u64 > *beyond => Ok(long),
            _ => Ok(&self.frequencies),
        }
    }
}

const THETAS: RangeInclusive<f64> = 1.0..=1e12;
const SECTIONS: [&str; 2] = ["rope_scaling", "rope_parameters"];
/// What `rope_parameters` calls layers without and with a window, where it has a section for each.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

impl RotaryPlan {
    pub(crate) fn none(model: &Transformer) -> Self {
        Self { schemes: Vec::new(), of_layers: vec![None; model.layer_count() as usize] }
    }

    pub(crate) fn read(
        keys: &Keys<'_>,
        model: &Transformer,
        page: &RotaryPage,
        remarks: &mut Vec<String>,
    ) -> Result<Self, NetworkError> {
        let reader = Reader { keys, model, page };
        let layers = model.layer_count() as usize;
        match page.layers {
            RotaryLayers::Same => {
                let scheme = reader.scheme(&Section::of_all(keys)?, remarks)?;
                Ok(Self { schemes: vec![scheme], of_layers: vec![Some(0); layers] })
            }
            RotaryLayers::Listed => {
                let scheme = reader.scheme(&Section::of_all(keys)?, remarks)?;
                let turns = turning_layers(keys, layers)?;
                let of_layers = turns.into_iter().map(|turns| turns.then_some(0)).collect();
                Ok(Self { schemes: vec![scheme], of_layers })
            }
            RotaryLayers::ByReach { local } => {
                let [full, sliding] = Section::by_reach(keys)?;
                let full = reader.scheme(&full, remarks)?;
                let near = match local {
                    Some((key, usual)) => {
                        let theta = sliding.theta(keys.number_within(key, usual, THETAS)?)?;
                        reader.scheme_with(&sliding, theta, remarks)?
                    }
                    None => reader.scheme(&sliding, remarks)?,
                };
                let of = |reach: Reach| usize::from(reach != Reach::Full);
                let of_layers = model.layers().map(|layer| Some(of(layer.reach))).collect();
                Ok(Self { schemes: vec![full, near], of_layers })
            }
        }
    }
}

/// `no_rope_layers` has, despite its name, a 1 for each layer with rotary positions.
fn turning_layers(keys: &Keys<'_>, layers: usize) -> Result<Vec<bool>, NetworkError> {
    let listed = keys.numbers("no_rope_layers")?;
    let interval = keys.number_within("no_rope_layer_interval", 4.0, 1.0..=1e9)? as usize;
    match listed {
        None => Ok((0..layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect()),
        Some(listed) if listed.len() == layers => Ok(listed.into_iter().map(|turns| turns != 0).collect()),
        Some(_) => Err(keys
            .wrong("no_rope_layers", format!("a list of {layers} numbers, one for each layer"))
            .into()),
    }
}

/// What schemes are read with.
struct Reader<'a> {
    keys: &'a Keys<'a>,
    model: &'a Transformer,
    page: &'a RotaryPage,
}

impl Reader<'_> {
    /// The base of the whole model.
    fn theta(&self) -> Result<f64, ModelError> {
        match self.page.theta {
            Some(usual) => self.keys.number_within("rope_theta", usual, THETAS),
            None => required(self.keys, "rope_theta", THETAS),
        }
    }

    fn scheme(&self, section: &Section<'_>, remarks: &mut Vec<String>) -> Result<RotaryScheme, NetworkError> {
        let theta = match &section.keys {
            Some(keys) if keys.number("rope_theta")?.is_some() => section.theta(1.0)?,
            _ => self.theta()?,
        };
        self.scheme_with(section, theta, remarks)
    }

    fn scheme_with(
        &self,
        section: &Section<'_>,
        theta: f64,
        remarks: &mut Vec<String>,
    ) -> Result<RotaryScheme, NetworkError> {
        let head_dim = self.model.layers().next().map_or(0, |layer| turned_dim(&layer.attention));
        let rotated = (head_dim as f64 * self.partial(section)?) as u64 / 2 * 2;
        let plain: Vec<f64> =
            (0..rotated / 2).map(|pair| theta.powf(-2.0 * pair as f64 / rotated as f64)).collect();
        let original = self.original(section)?;
        let max_context = self.model.max_context as f64;
        let stretch = Stretch { theta, rotated: rotated as f64, original, max_context };
        remarks.extend(section.ignored(self.page));
        let kind = section.kind(self.page);
        let pairing = match self.page.pairing_switch {
            Some(key) if !self.keys.flag(key, true)? => Pairing::Halves,
            _ => self.page.pairing,
        };
        let mut scheme =
            RotaryScheme { frequencies: plain, long: None, most: None, attention_factor: 1.0, pairing };
        let Some(keys) = &section.keys else {
            if let Some(UsualYarn { factor, original, is_truncated }) = self.page.usual {
                let usual = Yarn {
                    factor,
                    is_truncated,
                    fast: 32.0,
                    slow: 1.0,
                    attention_factor: growth(factor, 1.0),
                };
                Stretch { original, ..stretch }.yarn(&usual, &mut scheme);
            }
            return Ok(scheme);
        };
        match kind {
            "default" => {}
            "linear" => {
                let factor = required(keys, "factor", FACTORS)?;
                scheme.frequencies.iter_mut().for_each(|frequency| *frequency /= factor);
            }
            "dynamic" => {
                required(keys, "factor", FACTORS)?;
                scheme.most = Some(self.model.max_context);
            }
            "llama3" => stretch.llama3(keys, &mut scheme)?,
            "yarn" => stretch.yarn(&Yarn::read(keys, max_context / original)?, &mut scheme),
            "longrope" => stretch.long(keys, &mut scheme, remarks)?,
            other => {
                return Err(NetworkError::Unsupported { feature: format!("the rotary scheme `{other}`") });
            }
        }
        Ok(scheme)
    }

    /// The share of a head that turns.
    fn partial(&self, section: &Section<'_>) -> Result<f64, NetworkError> {
        let shares = 0.0..=1.0;
        let outside = self.keys.number_within(
            "partial_rotary_factor",
            self.page.partial.unwrap_or(1.0),
            shares.clone(),
        )?;
        let keys = section.keys.as_ref().unwrap_or(self.keys);
        let share = keys.number_within("partial_rotary_factor", outside, shares)?;
        if self.page.partial.is_none() && share != 1.0 {
            let keys = if keys.number("partial_rotary_factor")?.is_some() { keys } else { self.keys };
            let expected = "1, as heads of this family turn as a whole";
            return Err(keys.wrong("partial_rotary_factor", expected).into());
        }
        Ok(share)
    }

    /// The longest text for which the model was first trained, which a key beside the section knows best.
    fn original(&self, section: &Section<'_>) -> Result<f64, ModelError> {
        let range = 1.0..=1e12;
        let key = "original_max_position_embeddings";
        let keys = section.keys.as_ref().unwrap_or(self.keys);
        let inside = keys.number_within(key, self.model.max_context as f64, range.clone())?;
        self.keys.number_within(key, inside, range)
    }
}

/// Numbers of a query's head that may turn.
pub(crate) fn turned_dim(attention: &Attention) -> u64 {
    match attention {
        Attention::Latent(latent) => latent.rope_dim,
        other => other.query_dim(),
    }
}

/// What scores of attention grow by where positions are stretched with `mscale_all_dim`.
pub(crate) fn score_factor(keys: &Keys<'_>) -> Result<f64, NetworkError> {
    let section = Section::of_all(keys)?;
    let Some(keys) = &section.keys else { return Ok(1.0) };
    let weight = keys.number_within("mscale_all_dim", 0.0, 0.0..=1e6)?;
    match section.kind {
        "default" => Ok(1.0),
        _ if weight == 0.0 => Ok(1.0),
        "yarn" => Ok(growth(required(keys, "factor", FACTORS)?, weight).powi(2)),
        kind => {
            let feature = format!("`mscale_all_dim` with the rotary scheme `{kind}`");
            Err(NetworkError::Unsupported { feature })
        }
    }
}

/// The section on rotary positions, where there is one.
struct Section<'a> {
    name: &'static str,
    keys: Option<Keys<'a>>,
    kind: &'a str,
}

impl<'a> Section<'a> {
    /// One for all layers. Where two are given, transformers 5 takes the older one, and version 4 knows no other.
    fn of_all(keys: &Keys<'a>) -> Result<Self, NetworkError> {
        for name in SECTIONS {
            if let Some(section) = keys.section(name)? {
                return Self::new(name, Some(section));
            }
        }
        Self::new(SECTIONS[1], None)
    }

    /// Those of layers without a window and with one. The older section is about the former.
    fn by_reach(keys: &Keys<'a>) -> Result<[Self; 2], NetworkError> {
        let newer = keys.section(SECTIONS[1])?;
        let nested = |name| newer.as_ref().map_or(Ok(None), |newer| newer.section(name));
        let (full, sliding) = (nested(FULL)?, nested(SLIDING)?);
        if let Some(newer) = newer.as_ref().filter(|_| full.is_none() && sliding.is_none()) {
            let expected = format!("an object with `{FULL}` and `{SLIDING}`");
            if newer.names().next().is_some() {
                return Err(keys.wrong(SECTIONS[1], expected).into());
            }
        }
        let older = keys.section(SECTIONS[0])?;
        let full = match older {
            Some(older) => Self::new(SECTIONS[0], Some(older))?,
            None => Self::new(SECTIONS[1], full)?,
        };
        Ok([full, Self::new(SECTIONS[1], sliding)?])
    }

    fn new(name: &'static str, keys: Option<Keys<'a>>) -> Result<Self, NetworkError> {
        let kind = match &keys {
            Some(section) => section.word("rope_type")?.or(section.word("type")?),
            None => None,
        };
        Ok(Self { name, keys, kind: kind.unwrap_or("default") })
    }

    fn theta(&self, outside: f64) -> Result<f64, ModelError> {
        self.keys.as_ref().map_or(Ok(outside), |keys| keys.number_within("rope_theta", outside, THETAS))
    }

    fn kind(&self, page: &RotaryPage) -> &'a str {
        if page.long_names.contains(&self.kind) { "longrope" } else { self.kind }
    }

    /// The keys of the section that its kind does not have.
    fn ignored(&self, page: &RotaryPage) -> Vec<String> {
        let kind = self.kind(page);
        let own: &[&str] = match kind {
            "linear" | "dynamic" => &["factor"],
            "llama3" => {
                &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
            }
            "yarn" => &[
                "factor",
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
                "truncate",
                "original_max_position_embeddings",
                // The same as beside the section.
                "max_position_embeddings",
            ],
            "longrope" => &[
                "factor",
                "attention_factor",
                "short_factor",
                "long_factor",
                "original_max_position_embeddings",
            ],
            _ => &[],
        };
        let every = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];
        let is_read = |key: &&str| own.contains(key) || every.contains(key);
        let names = self.keys.iter().flat_map(Keys::names).filter(|key| !is_read(key));
        let name = self.name;
        names
            .map(|key| format!("`{key}` in `{name}` is not a key of the scheme `{kind}` and is ignored"))
            .collect()
    }
}

const FACTORS: RangeInclusive<f64> = 1.0..=1e6;

fn required(keys: &Keys<'_>, key: &'static str, range: RangeInclusive<f64>) -> Result<f64, ModelError> {
    if keys.number(key)?.is_none() {
        return Err(keys.missing(key));
    }
    keys.number_within(key, 0.0, range)
}

/// The constants of YaRN.
struct Yarn {
    factor: f64,
    /// Pairs that make more turns over the original length than the first stay, those with fewer than the second are slowed.
    fast: f64,
    slow: f64,
    is_truncated: bool,
    attention_factor: f64,
}

impl Yarn {
    fn read(keys: &Keys<'_>, usual_factor: f64) -> Result<Self, NetworkError> {
        let factor = keys.number_within("factor", usual_factor, FACTORS)?;
        let turns = |key, usual| {
            keys.number_within(key, usual, 0.0..=1e6).map(|found| if found == 0.0 { usual } else { found })
        };
        let weight = |key| keys.number_within(key, 0.0, 0.0..=1e6);
        let (one, all) = (weight("mscale")?, weight("mscale_all_dim")?);
        let both = one != 0.0 && all != 0.0;
        let usual = if both { growth(factor, one) / growth(factor, all) } else { growth(factor, 1.0) };
        Ok(Self {
            factor,
            fast: turns("beta_fast", 32.0)?,
            slow: turns("beta_slow", 1.0)?,
            is_truncated: keys.flag("truncate", true)?,
            attention_factor: keys.number_within("attention_factor", usual, 0.0..=1e6)?,
        })
    }
}

/// What YaRN lets grow with the factor by which it stretches.
fn growth(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}

/// How frequencies are changed, with what all ways to do so need.
struct Stretch {
    theta: f64,
    /// Numbers of a head that turn.
    rotated: f64,
    original: f64,
    max_context: f64,
}

impl Stretch {
    /// Llama 3.1: long waves are slowed by `factor`, short ones stay, those between are blended.
    fn llama3(&self, keys: &Keys<'_>, scheme: &mut RotaryScheme) -> Result<(), NetworkError> {
        let low = required(keys, "low_freq_factor", 0.0..=1e6)?;
        let high = required(keys, "high_freq_factor", 0.0..=1e6)?;
        if high <= low {
            return Err(keys.wrong("high_freq_factor", format!("above `low_freq_factor`, {low}")).into());
        }
        let factor = required(keys, "factor", FACTORS)?;
        for frequency in &mut scheme.frequencies {
            let turns = self.original * *frequency / TAU;
            let blend = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            *frequency *= blend + (1.0 - blend) / factor;
        }
        Ok(())
    }

    /// YaRN: the same by the number of the pair, and turned numbers grow with the factor.
    fn yarn(&self, yarn: &Yarn, scheme: &mut RotaryScheme) {
        // The pair that makes so many turns over the original length.
        let pair = |turns: f64| self.rotated * (self.original / (turns * TAU)).ln() / (2.0 * self.theta.ln());
        let (mut low, mut high) = (pair(yarn.fast), pair(yarn.slow));
        if yarn.is_truncated {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(self.rotated - 1.0));
        if low == high {
            high += 0.001;
        }
        for (number, frequency) in scheme.frequencies.iter_mut().enumerate() {
            let slowed = ((number as f64 - low) / (high - low)).clamp(0.0, 1.0);
            *frequency *= slowed / yarn.factor + (1.0 - slowed);
        }
        scheme.attention_factor = yarn.attention_factor;
    }

    /// LongRoPE: a factor for each pair, one list for short texts and one for long ones.
    fn long(
        &self,
        keys: &Keys<'_>,
        scheme: &mut RotaryScheme,
        remarks: &mut Vec<String>,
    ) -> Result<(), NetworkError> {
        let pairs = scheme.frequencies.len();
        let list = |key: &'static str| -> Result<Vec<f64>, NetworkError> {
            let found = keys.decimals(key)?.ok_or_else(|| keys.missing(key))?;
            let is_right = found.len() == pairs && found.iter().all(|factor| *factor > 0.0);
            let expected = || {
                keys.wrong(key, format!("a list of {pairs} numbers above 0, one for each pair that turns"))
            };
            let found = if is_right { found } else { return Err(expected().into()) };
            Ok(scheme.frequencies.iter().zip(found).map(|(frequency, factor)| frequency / factor).collect())
        };
        let (short, long) = (list("short_factor")?, list("long_factor")?);
        let factor = keys.number_within("factor", self.max_context / self.original, 1e-6..=1e6)?;
        let usual = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / self.original.ln()).sqrt() };
        scheme.attention_factor = keys.number_within("attention_factor", usual, 0.0..=1e6)?;
        scheme.frequencies = short;
        scheme.long = Some((self.original as u64, long));
        remarks.push(format!(
            "texts have the positions for long ones (`long_factor`) wherever more than {} tokens are possible; transformers takes those for short texts (`short_factor`) as long as a text is shorter",
            self.original
        ));
        Ok(())
    }
}
