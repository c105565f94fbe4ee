//! `bedplate serve` with a small model, and `bedplate bench serve` against it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use bedplate_testkit::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// Longer than anything here takes, on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder with a model of random weights, gone with the test.
struct Desk(PathBuf);

impl Desk {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bedplate-serving-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let desk = Self(path);
        let model = r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
            "num_hidden_layers": 2, "vocab_size": 400, "max_position_embeddings": 512, "tie_word_embeddings": false}"#;
        fs::write(desk.0.join("config.json"), model).unwrap();
        fs::write(
            desk.0.join("train.toml"),
            "[model]\nconfig = \"config.json\"\n[data]\ncorpora = [\"corpus\"]\n",
        )
        .unwrap();
        desk.run("data generate --chat --documents 60 --validation 5 --vocabulary 400 --seed 3 --out corpus");
        let keys =
            "training.steps=1 training.batch=1 training.micro_batch=1 data.sequence=32 evaluation.every=0";
        let set: String = keys.split(' ').map(|key| format!(" --set {key}")).collect();
        desk.run(&format!("train train.toml{set}"));
        desk
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bedplate"));
        command.args(arguments.split(' ')).current_dir(&self.0);
        command
    }

    fn run(&self, arguments: &str) -> Output {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn json(&self, arguments: &str) -> Value {
        serde_json::from_slice(&self.run(arguments).stdout).unwrap()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server, killed with the test where it has not ended by itself.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start(desk: &Desk, more: &str) -> Self {
        let arguments =
            format!("serve run/model --listen 127.0.0.1:0 --name tiny --threads 2 --kv-memory 64MiB{more}");
        let mut process =
            desk.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let url = url.trim().to_owned();
        assert!(url.starts_with("http://127.0.0.1:"), "{url}");
        Self { process, url }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.url.trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request and returns all that comes back.
    fn ask(&self, path: &str, body: &Value) -> String {
        let mut stream = self.connect();
        stream.write_all(&request(path, body)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn chat(&self, more: Value) -> Value {
        let answer = self.ask("/v1/chat/completions", &chat(more));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        serde_json::from_str(body).unwrap()
    }

    fn metric(&self, name: &str) -> f64 {
        let text = self.ask("/metrics", &Value::Null);
        let line =
            text.lines().find(|line| line.starts_with(&format!("{name}{{model_name=\"tiny\"}}"))).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn request(path: &str, body: &Value) -> Vec<u8> {
    let (method, body) = if body.is_null() { ("GET", String::new()) } else { ("POST", body.to_string()) };
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn chat(more: Value) -> Value {
    let mut body =
        json!({ "model": "tiny", "messages": [{ "role": "user", "content": "Where is the lamp?" }] });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[test]
fn a_served_model_answers_in_the_forms_that_are_asked_for() {
    let desk = Desk::new("answers");
    let server = Server::start(&desk, "");
    let greedy = json!({ "temperature": 0, "max_tokens": 24 });
    let first = server.chat(greedy.clone());
    let text = first["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert_eq!(server.chat(greedy)["choices"][0]["message"]["content"], json!(text), "greedy answers repeat");
    let stream = server
        .ask("/v1/chat/completions", &chat(json!({ "temperature": 0, "max_tokens": 24, "stream": true })));
    let pieces = stream.lines().filter_map(|line| line.strip_prefix("data: {"));
    let pieces = pieces.map(|event| serde_json::from_str::<Value>(&format!("{{{event}")).unwrap());
    let joined: String = pieces
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(joined, text, "a stream has the same text");
    let shown = server.chat(json!({ "max_tokens": 8, "ignore_eos": true, "logprobs": true, "top_logprobs": 3, "n": 2, "seed": 7 }));
    for choice in shown["choices"].as_array().unwrap() {
        let tokens = choice["logprobs"]["content"].as_array().unwrap();
        assert_eq!(tokens.len(), 8);
        for token in tokens {
            // The token itself is one more where it is none of the most probable.
            let top = token["top_logprobs"].as_array().unwrap();
            assert!(
                (3..=4).contains(&top.len()) && top.iter().any(|each| each["token"] == token["token"]),
                "{token}"
            );
        }
    }
    let schema = json!({ "type": "object", "properties": { "ok": { "type": "boolean" }, "kind": { "enum": ["a", "b"] } },
                         "required": ["ok", "kind"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    for seed in 0..5 {
        let answer = server.chat(json!({ "response_format": format, "max_tokens": 300, "seed": seed }));
        let value: Value =
            serde_json::from_str(answer["choices"][0]["message"]["content"].as_str().unwrap()).unwrap();
        assert!(value["ok"].is_boolean() && value["kind"].is_string(), "{value}");
    }
    let word = server.chat(json!({ "guided_choice": ["left", "right"] }))["choices"][0]["message"]["content"]
        .clone();
    assert!(word == "left" || word == "right", "{word}");
    let long = server.ask("/v1/completions", &json!({ "model": "tiny", "prompt": vec![40; 600] }));
    assert!(long.contains("context_length_exceeded"), "{long}");
}

#[test]
fn clients_that_go_away_leave_nothing_behind_and_an_end_is_orderly() {
    let desk = Desk::new("leaves");
    let mut server = Server::start(&desk, " --trace trace.jsonl");
    // The others may leave before they have a token.
    server.chat(json!({ "max_tokens": 3 }));
    for _ in 0..20 {
        let mut client = server.connect();
        let body = json!({ "model": "tiny", "prompt": "the lamp", "max_tokens": 400, "ignore_eos": true, "stream": true, "n": 3 });
        client.write_all(&request("/v1/completions", &body)).unwrap();
        BufReader::new(&mut client).read_line(&mut String::new()).unwrap();
    }
    wait_until("all of them have ended", || server.metric("vllm:num_requests_running") == 0.0);
    wait_until("their blocks are free", || server.metric("vllm:kv_cache_usage_perc") == 0.0);
    let pid = nix::unistd::Pid::from_raw(server.process.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    wait_until("it ends", || server.process.try_wait().unwrap().is_some());
    assert!(server.process.wait().unwrap().success());
    let replayed = desk.json("replay requests trace.jsonl --step-time step=1ms --json");
    assert!(replayed["finished"].as_u64() > Some(0), "{replayed}");
}

#[test]
fn a_server_is_measured_and_compared() {
    bedplate_testkit::beside(env!("CARGO_BIN_EXE_bedplate"), "bedplate-bench");
    let desk = Desk::new("measured");
    let server = Server::start(&desk, "");
    let load = "--requests 12 --prompt 16..32 --output 6 --shared-prefix 50 --warmup 1 --json";
    let closed = desk.json(&format!("bench serve {} --concurrency 3 {load}", server.url));
    let one = &closed["servers"][0];
    assert_eq!(
        (&one["finished"], &one["output_tokens"], &one["model"]),
        (&json!(12), &json!(72), &json!("tiny"))
    );
    assert!(
        one["ttft"]["p50_s"].as_f64() > Some(0.0)
            && one["e2e"]["p99_s"].as_f64() >= one["e2e"]["p50_s"].as_f64()
    );
    assert!(closed["client_alone"]["finished"].as_u64() > Some(0));
    let open = desk.json(&format!("bench serve {0} {0} --rate 50/s {load}", server.url));
    assert_eq!(open["servers"].as_array().unwrap().len(), 2);
    assert!(open["ratios"]["ttft_p50"].as_f64() > Some(0.0), "{open}");
    let chats =
        desk.json(&format!("bench serve {} --chat --requests 4 --output 4 --prompt 8 --json", server.url));
    assert_eq!(chats["servers"][0]["output_tokens"], 16);
    fs::write(desk.0.join("trace.csv"), "TIMESTAMP,ContextTokens,GeneratedTokens\n0,8,3\n0.05,16,2\n")
        .unwrap();
    let traced = desk.json(&format!("bench serve {} --trace trace.csv --speed 2 --json", server.url));
    assert_eq!(traced["servers"][0]["output_tokens"], 5);
    let text = String::from_utf8(
        desk.run(&format!("bench serve {0} {0} --requests 4 --prompt 8 --output 4", server.url)).stdout,
    )
    .unwrap();
    assert!(text.contains("RATIO") && text.contains("client alone"), "{text}");
}

#[test]
fn two_ranks_with_half_of_the_model_each_give_its_answers_and_end_together() {
    let desk = Desk::new("ranks");
    let exact = " --precision f32";
    let (whole, cut) = (Server::start(&desk, exact), Server::start(&desk, &format!("{exact} --ranks 2")));
    let said = |server: &Server| {
        server.chat(json!({ "temperature": 0, "max_tokens": 20 }))["choices"][0]["message"].clone()
    };
    assert_eq!(said(&cut), said(&whole));
    let others = children(&cut);
    assert_eq!(others.len(), 1, "one rank was started beside the first");
    kill(Pid::from_raw(cut.process.id() as i32), Signal::SIGTERM).unwrap();
    wait_until("both ranks end", || !fs::exists(format!("/proc/{}/exe", others[0])).unwrap_or(false));
}

#[test]
fn a_server_whose_rank_is_killed_ends_with_an_error_instead_of_refusing_for_ever() {
    let desk = Desk::new("rank-killed");
    let mut server = Server::start(&desk, " --ranks 2");
    server.chat(json!({ "max_tokens": 2 }));
    kill(children(&server)[0], Signal::SIGKILL).unwrap();
    let mut ended = None;
    wait_until("the server ends", || {
        ended = server.process.try_wait().unwrap();
        ended.is_some()
    });
    assert!(!ended.unwrap().success());
}

/// The processes that a server started.
#[test]
fn a_server_that_still_reads_its_model_ends_when_it_is_told_to() {
    let folder = std::env::temp_dir().join(format!("bedplate-serving-endless-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let endless = folder.join("config.json");
    nix::unistd::mkfifo(&endless, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bedplate"));
    command.arg("serve").arg(&folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("loads "), "{line}");
    kill(Pid::from_raw(process.id() as i32), Signal::SIGTERM).unwrap();
    wait_until("the end", || process.try_wait().unwrap().is_some());
    fs::remove_dir_all(&folder).unwrap();
}

fn children(server: &Server) -> Vec<Pid> {
    let first = server.process.id();
    let threads = fs::read_dir(format!("/proc/{first}/task")).unwrap().flatten();
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    lists.collect::<String>().split_whitespace().map(|child| Pid::from_raw(child.parse().unwrap())).collect()
}

const GPU: &str = "GPU 0 (Stand-in at 0000:1b:00.0, GPU-abababab-abab-abab-abab-abababababab)";
const WORDS: &str = "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered";

/// A command whose GPU computes nothing and fails a call as planned; what it reports to a cluster is in `report`.
fn on_stand_in(desk: &Desk, arguments: &str, plan: &str) -> Command {
    bedplate_fakenvml::install_cuda(&desk.0).unwrap();
    let mut command = desk.command(arguments);
    command.env("LD_LIBRARY_PATH", &desk.0).env("BEDPLATE_FAKE_CUDA", plan);
    command.env("XDG_CACHE_HOME", desk.0.join("cache")).env("BEDPLATE_REPORT", desk.0.join("report"));
    command
}

/// Asserts that a command ended as transient, said which GPU failed and how, and reported it.
fn assert_device_fault(desk: &Desk, ended: &Output, what: &str) {
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(3), "{said}");
    assert!(said.contains(&format!("{GPU} failed to {what}")) && said.contains(WORDS), "{said}");
    let reported = fs::read_to_string(desk.0.join("report")).unwrap();
    let report: Value = serde_json::from_str(reported.lines().last().unwrap()).unwrap();
    assert_eq!((&report["report"], &report["address"]), (&json!("fault"), &json!("0000:1b:00.0")));
    assert!(report["message"].as_str().unwrap().contains(WORDS), "{report}");
}

#[test]
fn a_launch_that_fails_ends_training_as_transient_and_names_the_gpu() {
    let desk = Desk::new("train-fault");
    let keys = "training.steps=200 training.batch=1 training.micro_batch=1 data.sequence=32 evaluation.every=0 \
                output.folder=gpu checkpoint.every=1000";
    let set: String = keys.split_whitespace().map(|key| format!(" --set {key}")).collect();
    let arguments = format!("train train.toml --device cuda:0{set}");
    let ended = on_stand_in(&desk, &arguments, "cuLaunchKernelEx:1500:700").output().unwrap();
    assert_device_fault(&desk, &ended, "start the kernel ");
    let steps = fs::read_to_string(desk.0.join("gpu/metrics.jsonl")).unwrap().lines().count();
    assert!((2..200).contains(&steps), "it failed at step {steps}");
}

#[test]
fn a_server_whose_gpu_fails_tells_its_clients_and_ends_as_transient() {
    let desk = Desk::new("serve-fault");
    let arguments = "serve run/model --listen 127.0.0.1:0 --name tiny --kv-memory 64MiB --device cuda:0";
    let mut command = on_stand_in(&desk, arguments, "cuMemcpyDtoHAsync_v2:100:700");
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let mut server = Server { process, url: url.trim().to_owned() };
    let answer = server.ask("/v1/chat/completions", &chat(json!({ "max_tokens": 400, "ignore_eos": true })));
    assert!(answer.contains(GPU) && answer.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{answer}");
    let mut stderr = Vec::new();
    server.process.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    let ended = Output { status: server.process.wait().unwrap(), stdout: Vec::new(), stderr };
    assert_device_fault(&desk, &ended, "");
}

#[test]
fn the_most_talkative_log_of_a_server_has_its_requests_and_no_secret() {
    let desk = Desk::new("log");
    fs::write(desk.0.join("keys"), "sk-the-key-of-a-client\n").unwrap();
    let arguments =
        "serve run/model --listen 127.0.0.1:0 --name tiny --kv-memory 64MiB --log trace --log-format json";
    let mut command = desk.command(&format!("{arguments} --api-key-file keys"));
    command.env("AWS_SECRET_ACCESS_KEY", "secret-of-the-environment").env("BEDPLATE_JOB", "17");
    let log = fs::File::create(desk.0.join("log")).unwrap();
    let mut process = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let server = Server { process, url: url.trim().to_owned() };
    let body = chat(json!({ "max_tokens": 5 })).to_string();
    for key in ["sk-the-key-of-a-client", "sk-a-wrong-key"] {
        let head =
            format!("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n");
        let mut stream = server.connect();
        let rest = format!("Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all((head + &rest).as_bytes()).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    }
    kill(Pid::from_raw(server.process.id() as i32), Signal::SIGTERM).unwrap();
    let log = || fs::read_to_string(desk.0.join("log")).unwrap();
    wait_until("the engine ends", || log().contains("the engine ends"));
    let log = log();
    for secret in ["sk-the-key", "sk-a-wrong", "secret-of-the-environment", "Where is the lamp"] {
        assert!(!log.contains(secret), "{secret} is logged: {log}");
    }
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let is_of_job = |line: &&Value| line["message"] == "finished" && line["request"].is_u64();
    let finished = lines.iter().find(is_of_job).unwrap_or_else(|| panic!("no request has finished: {log}"));
    assert_eq!(finished["span"]["job"], "17", "{finished}");
    assert!(lines.iter().any(|line| line["message"] == "the model is loaded"));
}

#[test]
fn a_check_burns_in_gpus_and_names_the_one_that_fails() {
    let desk = Desk::new("burn-in");
    let arguments = "health check --for 0.05s --disk-mib 1 --gpu-memory 64MiB --json";
    let outcome = |plan: &str| {
        let ended = on_stand_in(&desk, arguments, plan).output().unwrap();
        let outcomes: Value = serde_json::from_slice(&ended.stdout).unwrap();
        let gpu = outcomes.as_array().unwrap().iter().find(|it| it["check"] == "GPU 0 (Stand-in)");
        let gpu = gpu.unwrap_or_else(|| panic!("{outcomes:#}"));
        (gpu["verdict"].clone(), gpu["remark"].as_str().unwrap().to_owned(), ended.status.code())
    };
    let (verdict, remark, _) = outcome("");
    assert_eq!(verdict, "pass", "{remark}");
    assert!(remark.contains("products of fp8 2x") && remark.contains("memory 67.11 MB"), "{remark}");
    let (verdict, remark, code) = outcome("cuLaunchKernelEx:30:700");
    assert_eq!((verdict, code), ("fail".into(), Some(1)), "{remark}");
    assert!(remark.contains(GPU) && remark.contains(WORDS), "{remark}");
}
