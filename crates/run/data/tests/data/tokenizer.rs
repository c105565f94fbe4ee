//! Tokenizers: trained here, loaded, refused.

use bedplate_data::{Kind, Tokenizer, TrainingOptions, generate, train_tokenizer};
use bedplate_diag::{Diagnostic, render_text};

fn trained(vocabulary: u32) -> Tokenizer {
    let texts: Vec<String> = (0..300).map(|number| generate(Kind::Mixture, 1, number)).collect();
    let options = TrainingOptions { vocabulary, ..TrainingOptions::default() };
    train_tokenizer(texts.iter().map(String::as_str), &options).unwrap()
}

#[test]
fn what_is_encoded_is_decoded_again() {
    let tokenizer = trained(700);
    for text in ["The lamp is in the garden.", "7 + 5 = 12", "", " \n\t x", "naïve 漢字 🦀", "<|endoftext|>a"]
    {
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        assert!(ids.iter().all(|id| *id < tokenizer.vocabulary()));
    }
    assert_eq!(tokenizer.encode("<|endoftext|>").unwrap(), [tokenizer.end().unwrap()]);
}

#[test]
fn training_finds_the_words_of_its_texts() {
    let tokenizer = trained(1000);
    assert_eq!(tokenizer.vocabulary(), 1000);
    assert_eq!(tokenizer.encode(" garden").unwrap().len(), 1);
    assert_eq!(tokenizer.encode("123").unwrap().len(), 3, "digits stay apart");
    let text = generate(Kind::Stories, 99, 5);
    let per_token = text.len() as f64 / tokenizer.encode(&text).unwrap().len() as f64;
    assert!(per_token > 3.0, "{per_token:.2} bytes per token");
}

#[test]
fn training_is_the_same_for_any_order_of_the_texts() {
    let texts: Vec<String> = (0..100).map(|number| generate(Kind::Mixture, 3, number)).collect();
    let options = TrainingOptions { vocabulary: 600, ..TrainingOptions::default() };
    let forwards = train_tokenizer(texts.iter().map(String::as_str), &options).unwrap();
    let backwards = train_tokenizer(texts.iter().rev().map(String::as_str), &options).unwrap();
    assert_eq!(forwards.json(), backwards.json());
    assert_eq!(forwards.digest(), backwards.digest());
}

#[test]
fn a_tokenizer_must_fit_the_model() {
    let tokenizer = trained(600);
    tokenizer.check_fits(600).unwrap();
    let text = render_text(&tokenizer.check_fits(512).unwrap_err());
    assert!(text.contains("tokenizer has ids up to 599 but the model's vocabulary is 512"), "{text}");
    assert!(text.contains("600 or more"), "{text}");
}

#[test]
fn what_is_no_tokenizer_is_refused_with_its_place() {
    let good = trained(300).json().to_owned();
    for (text, expected) in [
        ("", "it is not JSON"),
        ("{\n  \"version\": 1.0,\n", "it is not JSON"),
        ("{}", "cannot be used"),
        ("[1, 2]", "cannot be used"),
        (&good.replace("\"BPE\"", "\"XPE\""), "cannot be used"),
    ] {
        let error = Tokenizer::parse(text, None, "my.json").unwrap_err();
        assert_eq!(error.page().code, "data/bad-tokenizer");
        let shown = render_text(&error);
        assert!(shown.contains(expected) && shown.contains("my.json"), "{shown}");
    }
}

#[test]
fn marks_come_from_the_configuration_or_from_known_names() {
    let json = trained(300).json().to_owned();
    let marks = |config: Option<&str>| {
        let tokenizer = Tokenizer::parse(&json, config, "x").unwrap();
        (tokenizer.begin(), tokenizer.end())
    };
    assert_eq!(marks(None), (None, Some(0)));
    assert_eq!(marks(Some(r#"{"eos_token": "<|im_end|>", "bos_token": null}"#)), (None, Some(2)));
    let written_out = r#"{"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>"}"#;
    assert_eq!(marks(Some(written_out)), (Some(1), Some(2)));
}
