//! Chromium without a window, spoken to through a pipe.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use bedplate_testkit::wait_to_see;
use serde_json::{Value, json};

use crate::support::PATIENCE;

/// A browser with one page. It and its files go when this is dropped.
pub(crate) struct Browser {
    process: Child,
    orders: ChildStdin,
    messages: Receiver<Value>,
    profile: PathBuf,
    session: String,
    number: u64,
    /// What went wrong in the page.
    pub(crate) exceptions: Vec<Value>,
}

impl Browser {
    /// None where Chromium is not installed.
    pub(crate) fn open(url: &str, name: &str) -> Option<Self> {
        let program = ["chromium", "chromium-browser", "google-chrome"]
            .into_iter()
            .find(|program| is_installed(program))?;
        let profile = std::env::temp_dir().join(format!("bedplate-browser-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&profile).unwrap();
        // The browser reads orders from file 3 and writes to file 4.
        let script = format!(
            "exec {program} --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --user-data-dir='{}' --remote-debugging-pipe 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null",
            profile.display()
        );
        let mut process = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, messages) = channel();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            while output.read_until(0, &mut bytes).is_ok_and(|count| count > 0) {
                bytes.pop();
                if sender.send(serde_json::from_slice(&bytes).unwrap()).is_err() {
                    return;
                }
                bytes.clear();
            }
        });
        let orders = process.stdin.take().unwrap();
        let mut browser = Self {
            process,
            orders,
            messages,
            profile,
            session: String::new(),
            number: 0,
            exceptions: Vec::new(),
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for area in ["Runtime.enable", "Log.enable", "Page.enable"] {
            browser.call(area, json!({}));
        }
        browser.call("Page.navigate", json!({ "url": url }));
        browser.until("document.readyState === 'complete' && location.href !== 'about:blank'");
        Some(browser)
    }

    /// Calls a method of the browser and returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let mut order = json!({ "id": self.number, "method": method, "params": parameters });
        if !self.session.is_empty() {
            order["sessionId"] = self.session.clone().into();
        }
        self.orders.write_all(format!("{order}\0").as_bytes()).unwrap();
        loop {
            let message =
                self.messages.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no answer to {method}"));
            if message["id"] == self.number {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            let is_bad = message["method"] == "Runtime.exceptionThrown"
                || (message["method"] == "Log.entryAdded"
                    && message["params"]["entry"]["source"] == "security");
            if is_bad {
                self.exceptions.push(message);
            }
        }
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", asked);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression holds.
    pub(crate) fn until(&mut self, expression: &str) {
        let holds = format!("[Boolean({expression}), document.body?.innerText]");
        wait_to_see(expression, || self.value(&holds), |seen| seen[0] == true);
    }

    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Leaves a picture in the folder that `BEDPLATE_PICTURES` names, for people to look at.
    pub(crate) fn picture(&mut self, name: &str) {
        let Ok(folder) = std::env::var("BEDPLATE_PICTURES") else { return };
        let data = self.call("Page.captureScreenshot", json!({ "format": "png" }))["data"]
            .as_str()
            .unwrap()
            .to_owned();
        std::fs::write(PathBuf::from(folder).join(format!("{name}.png.base64")), data).unwrap();
    }
}

fn is_installed(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.orders.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let began = Instant::now();
        while self.process.try_wait().is_ok_and(|status| status.is_none()) && began.elapsed().as_secs() < 10 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}
