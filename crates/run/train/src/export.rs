//! The tokenizer beside finished weights, with all that other tools need to use it as this run did.

use std::fs;
use std::path::Path;

use bedplate_data::{ChatTemplate, Tokenizer};
use serde_json::json;

use crate::TrainError;

const CONFIG_FILE: &str = "tokenizer_config.json";
const TEMPLATE_FILE: &str = "chat_template.jinja";

/// Saves a tokenizer with its configuration and the chat template that conversations were rendered with. A tokenizer that came
/// without a configuration gets one: without it transformers guesses the tokenizer's class, and its marks, from the model.
pub(crate) fn save_tokenizer(
    tokenizer: &Tokenizer,
    is_chat: bool,
    longest: u64,
    folder: &Path,
) -> Result<(), TrainError> {
    tokenizer.save(folder)?;
    if tokenizer.chat_template().is_none()
        && let Some(template) = ChatTemplate::source_of(tokenizer).filter(|_| is_chat)
    {
        write(&folder.join(TEMPLATE_FILE), &template)?;
    }
    if folder.join(CONFIG_FILE).exists() {
        return Ok(());
    }
    let spelled = |id: Option<u32>| id.map(|id| tokenizer.decode(&[id])).transpose();
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "clean_up_tokenization_spaces": false,
    });
    for (key, mark) in [("bos_token", spelled(tokenizer.begin())?), ("eos_token", spelled(tokenizer.end())?)]
    {
        if let Some(mark) = mark {
            config[key] = mark.into();
        }
    }
    write(&folder.join(CONFIG_FILE), &format!("{config:#}\n"))
}

fn write(path: &Path, text: &str) -> Result<(), TrainError> {
    fs::write(path, text).map_err(|source| TrainError::WriteOutput { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_data::{TrainingOptions, train_tokenizer};
    use serde_json::Value;

    #[test]
    fn a_tokenizer_is_saved_with_its_configuration_and_template() {
        let folder = std::env::temp_dir().join(format!("bedplate-train-export-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let options = TrainingOptions { vocabulary: 259, ..TrainingOptions::default() };
        let tokenizer = train_tokenizer([], &options).unwrap();
        save_tokenizer(&tokenizer, false, 128, &folder).unwrap();
        let config: Value = serde_json::from_slice(&fs::read(folder.join(CONFIG_FILE)).unwrap()).unwrap();
        assert_eq!(
            (&config["eos_token"], &config["model_max_length"]),
            (&json!("<|endoftext|>"), &json!(128))
        );
        assert!(!folder.join(TEMPLATE_FILE).exists(), "it was trained on no conversations");
        save_tokenizer(&tokenizer, true, 128, &folder).unwrap();
        assert!(fs::read_to_string(folder.join(TEMPLATE_FILE)).unwrap().contains("<|im_start|>"));

        // What the tokenizer came with is kept as it is.
        let own = r#"{"eos_token": "<|im_end|>", "chat_template": "{{ messages }}"}"#;
        fs::write(folder.join(CONFIG_FILE), own).unwrap();
        fs::remove_file(folder.join(TEMPLATE_FILE)).unwrap();
        let tokenizer = Tokenizer::load(&folder.join("tokenizer.json")).unwrap();
        let other = folder.join("other");
        fs::create_dir_all(&other).unwrap();
        save_tokenizer(&tokenizer, true, 128, &other).unwrap();
        assert_eq!(fs::read_to_string(other.join(CONFIG_FILE)).unwrap(), own);
        assert!(!other.join(TEMPLATE_FILE).exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
