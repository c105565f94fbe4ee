//! From a configuration to what a run needs: the model's architecture, its tokenizer, its streams of samples.

use std::path::Path;
use std::sync::Arc;

use bedplate_data::{
    Batch, Batches, Content, Corpus, DocumentMask, IGNORED, MixtureSource as CorpusSource, Packing, Sample,
    SampleOrder, Schedule, Stream, StreamOptions, Tokenizer,
};
use bedplate_diag::Source;
use bedplate_host::read_regular_text;
use bedplate_network::{Architecture, CONFIG_FILE, MOST_JSON_BYTES};
use bedplate_transformer::builtin;

use crate::ranks::RunRanks;
use crate::{TrainConfig, TrainError};

/// The architecture that `model.config` names: a file, a folder with a `config.json`, or a built-in shape.
pub fn read_architecture(named: &str) -> Result<Architecture, TrainError> {
    let path = Path::new(named);
    let file = if path.is_dir() { path.join(CONFIG_FILE) } else { path.to_owned() };
    match read_regular_text(&file, MOST_JSON_BYTES) {
        Ok(text) => Ok(Architecture::from_config(Source::new(&file.to_string_lossy(), &text))?),
        Err(source) => match builtin(named) {
            Ok(transformer) => Ok(Architecture::from_shape(transformer)?),
            Err(_) => Err(TrainError::ReadModel { path: file, source }),
        },
    }
}

/// The data of a run.
pub(crate) struct Data {
    pub(crate) tokenizer: Tokenizer,
    stream: Arc<Stream>,
    evaluation: Option<Stream>,
    mask: DocumentMask,
    digests: Vec<String>,
    is_chat: bool,
}

impl Data {
    pub(crate) fn open(config: &TrainConfig, vocabulary: u64) -> Result<Self, TrainError> {
        let data = &config.data;
        let mut sources = Vec::new();
        for corpus in &data.corpora {
            sources
                .push(CorpusSource { corpus: Arc::new(Corpus::open(&corpus.path)?), weight: corpus.weight });
        }
        let digests = sources.iter().map(|source| source.corpus.digest().to_string()).collect();
        let is_chat = sources.iter().any(|source| source.corpus.index().content == Content::Chat);
        let tokenizer = sources[0].corpus.load_tokenizer()?;
        tokenizer.check_fits(vocabulary.try_into().unwrap_or(u32::MAX))?;
        let options =
            |order| StreamOptions { sequence: data.sequence, seed: data.seed, packing: data.packing, order };
        let evaluation = match &config.evaluation.corpus {
            Some(path) => {
                let corpus = Corpus::open(path)?;
                sources[0].corpus.expect_same_tokenizer(&corpus)?;
                Some(Stream::of(corpus, options(SampleOrder::Sequential))?)
            }
            None => None,
        };
        let stream = Arc::new(Stream::new(sources, options(SampleOrder::Shuffled))?);
        // Whole documents with padding between them are never to see each other.
        let is_masked = data.has_document_mask || data.packing == Packing::Whole;
        let mask = if is_masked { DocumentMask::Own } else { DocumentMask::Ignored };
        Ok(Self { tokenizer, stream, evaluation, mask, digests, is_chat })
    }

    /// What identifies each corpus, in any folder.
    pub(crate) fn digests(&self) -> Vec<String> {
        self.digests.clone()
    }

    /// Whether conversations are trained on.
    pub(crate) fn is_chat(&self) -> bool {
        self.is_chat
    }

    /// Whether tokens see only their own document.
    pub(crate) fn is_masked(&self) -> bool {
        self.mask == DocumentMask::Own
    }

    /// Which samples a rank takes, after some samples.
    pub(crate) fn schedule(&self, config: &TrainConfig, ranks: &RunRanks, samples: u64) -> Schedule {
        let training = &config.training;
        Schedule {
            first_sample: samples,
            global_batch: training.batch,
            rows: training.micro_batch,
            rank: ranks.at().data.into(),
            ranks: ranks.layout().data.into(),
        }
    }

    /// A rank's micro-batches after some samples, read ahead.
    pub(crate) fn batches(
        &self,
        config: &TrainConfig,
        ranks: &RunRanks,
        samples: u64,
    ) -> Result<Batches, TrainError> {
        let schedule = self.schedule(config, ranks, samples);
        let ahead = schedule.micro_batches() as usize + 1;
        Ok(Batches::start(Arc::clone(&self.stream), schedule, self.mask, ahead)?)
    }

    /// A rank's micro-batches of an evaluation, always the same, one at a time; nothing without a corpus for it. Every rank has as
    /// many: where they do not divide, some that do not count.
    pub(crate) fn evaluation(
        &self,
        config: &TrainConfig,
        ranks: &RunRanks,
    ) -> Option<impl Iterator<Item = Result<Batch, TrainError>>> {
        let stream = self.evaluation.as_ref()?;
        let rows = config.training.micro_batch;
        let (place, count) = (u64::from(ranks.at().data), u64::from(ranks.layout().data));
        let total = config.evaluation.batches;
        let mut sample = Sample::default();
        Some((0..total.div_ceil(count)).map(move |turn| {
            let number = turn * count + place;
            let mut batch = Batch::default();
            batch.fill(stream, number.min(total - 1) * rows, rows, self.mask, &mut sample)?;
            if number >= total {
                batch.targets.fill(IGNORED);
                batch.counted = 0;
            }
            Ok(batch)
        }))
    }
}
