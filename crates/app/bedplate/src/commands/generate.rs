//! `bedplate generate`: one prompt, continued on standard output.

use std::io::{IsTerminal, Read, Write};
use std::time::Instant;

use bedplate_data::{ChatTemplate, Message, Tokenizer};
use bedplate_serve::{Ask, Continuation, EndReason, Replica, SampleEvent, Sampling};
use bedplate_terminal::{CliError, Console, ProgramError};
use serde_json::json;

use crate::serving::EngineArguments;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate generate runs/first/model 'Once upon a time'
  bedplate generate ./Qwen3-0.6B --chat 'Why is the sky blue?' --tokens 200
  cat report.txt | bedplate generate ./Llama-3.2-1B - --temperature 0")]
pub(crate) struct Arguments {
    #[command(flatten)]
    engine: EngineArguments,
    /// The text to continue; `-` reads it from standard input
    prompt: String,
    /// Send the prompt as a question, through the model's chat template
    #[arg(long)]
    chat: bool,
    /// Most tokens of the answer
    #[arg(long, value_name = "N", default_value_t = 128)]
    tokens: u32,
    /// How freely tokens are sampled; 0 always takes the most likely one
    #[arg(long, value_name = "T", default_value_t = 0.7)]
    temperature: f32,
    /// Sample from the most likely tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f32,
    /// Sample from this many most likely tokens; 0 means all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: u32,
    /// Equal seeds give equal answers
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let text = match arguments.prompt.as_str() {
        "-" => read_input()?,
        prompt => prompt.to_owned(),
    };
    let (engine, _, tokenizer) = arguments.engine.start()?;
    let prompt = encode(arguments, &tokenizer, &text)?;
    let sampling = Sampling {
        temperature: arguments.temperature,
        top_p: arguments.top_p,
        top_k: arguments.top_k,
        seed: arguments.seed,
        ..Sampling::default()
    };
    let limit = engine.about().context_limit;
    let most = arguments.tokens.min(limit.saturating_sub(prompt.len() as u32)).max(1);
    let continuation = Continuation { most, sampling, ..Continuation::default() };
    let prompt_tokens = prompt.len();
    let began = Instant::now();
    let mut answer =
        engine.ask(Ask::text(prompt, continuation)).map_err(|refusal| refused(&refusal.to_string()))?;
    let mut stream = tokenizer.pieces();
    let (mut written, mut count, mut first, mut end) = (String::new(), 0u32, None, EndReason::Stop);
    while let Some(event) = answer.wait() {
        match event {
            SampleEvent::Token { token, .. } => {
                first.get_or_insert_with(|| began.elapsed());
                count += 1;
                let piece = stream.push(token);
                show(console, &piece)?;
                written.push_str(&piece);
            }
            SampleEvent::End { reason, .. } => end = reason,
            SampleEvent::Failed(reason) => return Err(refused(&reason)),
            SampleEvent::Admitted { .. }
            | SampleEvent::Prompt { .. }
            | SampleEvent::Embedding(_)
            | SampleEvent::Blocks { .. } => {}
        }
    }
    let rest = stream.finish();
    show(console, &rest)?;
    written.push_str(&rest);
    let whole = began.elapsed().as_secs_f64();
    let first = first.map_or(whole, |first| first.as_secs_f64());
    let rate = f64::from(count.saturating_sub(1)) / (whole - first).max(1e-9);
    if console.is_json() {
        return console.json(&json!({
            "text": written,
            "prompt_tokens": prompt_tokens,
            "generated_tokens": count,
            "end": if end == EndReason::Length { "length" } else { "stop" },
            "first_token_seconds": first,
            "tokens_per_second": rate,
        }));
    }
    console.line("")?;
    console.say(&format!(
        "{prompt_tokens} tokens of prompt, {count} generated; the first after {first:.2} s, then {rate:.1} a second"
    ));
    Ok(())
}

fn encode(arguments: &Arguments, tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, CliError> {
    if arguments.chat {
        let template = ChatTemplate::of(tokenizer)?;
        return Ok(tokenizer.encode(&template.render(&[Message::new("user", text)], true)?)?);
    }
    let mut tokens = tokenizer.encode(text)?;
    if tokens.is_empty() {
        tokens.extend(tokenizer.begin().or(tokenizer.end()));
    }
    if tokens.is_empty() {
        return Err(refused("the prompt is empty, and the model has no token to begin with"));
    }
    Ok(tokens)
}

/// Pieces of the answer as they come; with `--json` all of it comes at the end.
fn show(console: &mut Console, piece: &str) -> Result<(), CliError> {
    if console.is_json() || piece.is_empty() {
        return Ok(());
    }
    console.text(piece)?;
    if std::io::stdout().is_terminal() {
        let _ = std::io::stdout().flush();
    }
    Ok(())
}

fn read_input() -> Result<String, CliError> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().take(64 << 20).read_to_end(&mut bytes);
    read.map_err(|error| refused(&format!("cannot read standard input: {error}")))?;
    String::from_utf8(bytes).map_err(|_| refused("standard input is not UTF-8"))
}

fn refused(message: &str) -> CliError {
    ProgramError::Usage { message: message.to_owned() }.into()
}
