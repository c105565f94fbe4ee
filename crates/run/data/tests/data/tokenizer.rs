//! Tokenizers: trained here, loaded, refused.

use bedplate_data::{CorpusKind, Tokenizer, TrainingOptions, generate, train_tokenizer};
use bedplate_diag::{Diagnostic, render_text};
use serde_json::{Map, Value, json};

fn trained(vocabulary: u32) -> Tokenizer {
    let texts: Vec<String> = (0..300).map(|number| generate(CorpusKind::Mixture, 1, number)).collect();
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
    let text = generate(CorpusKind::Stories, 99, 5);
    let per_token = text.len() as f64 / tokenizer.encode(&text).unwrap().len() as f64;
    assert!(per_token > 3.0, "{per_token:.2} bytes per token");
}

#[test]
fn training_is_the_same_for_any_order_of_the_texts() {
    let texts: Vec<String> = (0..100).map(|number| generate(CorpusKind::Mixture, 3, number)).collect();
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

/// Ids as Hugging Face's library gives them for the same files (tokenizers 0.23.3 for Python).
#[test]
fn ids_are_those_of_the_library_that_the_format_comes_from() {
    let tokenizer = trained(700);
    let cases: [(&str, &[u32]); 5] = [
        ("The lamp is in the garden.", &[87, 259, 495, 264, 270, 261, 365, 49]),
        ("47 + 85 = 132", &[55, 58, 276, 35, 59, 56, 272, 35, 52, 54, 53]),
        ("  Who has\n\nit?\t", &[35, 35, 334, 327, 325, 297, 66, 12]),
        ("naïve 漢字", &[113, 100, 198, 178, 657, 35, 233, 191, 165, 232, 176, 154]),
        ("<|im_start|>user\nIt's 5<|im_end|>", &[1, 120, 118, 266, 13, 76, 119, 42, 118, 35, 56, 2]),
    ];
    for (text, ids) in cases {
        assert_eq!(tokenizer.encode(text).unwrap(), ids, "{text}");
    }
}

/// In the style of Llama 2: pieces with a symbol for the space, and bytes for everything else.
#[test]
fn bytes_stand_in_where_pieces_are_missing() {
    let special = ["<unk>", "<s>", "</s>"];
    let bytes: Vec<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    let pieces = [
        "▁", "t", "h", "e", "a", "n", "d", "r", "g", "he", "▁t", "▁the", "▁g", "ar", "▁gar", "den", "en",
        "▁a", "an", "▁and", "nd",
    ];
    let tokens = special.into_iter().chain(bytes.iter().map(String::as_str)).chain(pieces);
    let vocabulary: Map<String, Value> =
        tokens.enumerate().map(|(id, token)| (token.to_owned(), json!(id))).collect();
    let merges = ["h e", "▁ t", "▁t he", "▁ g", "a r", "▁g ar", "e n", "d en", "▁ a", "a n", "n d", "▁a nd"];
    let added = special.iter().enumerate().map(|(id, token)| {
        json!({ "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true })
    });
    let document = json!({
        "version": "1.0",
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
        ]},
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
            { "type": "ByteFallback" },
            { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
        ]},
        "model": { "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
                   "vocab": vocabulary, "merges": merges },
    });
    let tokenizer = Tokenizer::parse(&document.to_string(), None, "llama").unwrap();
    assert_eq!((tokenizer.begin(), tokenizer.end()), (Some(1), Some(2)));
    let cases: [(&str, &[u32]); 2] = [
        ("the garden and the", &[270, 273, 274, 278, 270]),
        ("the né 漢", &[270, 259, 264, 198, 172, 259, 233, 191, 165]),
    ];
    for (text, ids) in cases {
        assert_eq!(tokenizer.encode(text).unwrap(), ids);
        assert_eq!(tokenizer.decode(ids).unwrap(), text);
    }
}
