//! The chat page in a browser.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bedplate_testkit::wait_until;

use crate::browser::Browser;
use crate::support::{Fixture, Parrot};

#[expect(clippy::print_stdout, reason = "a test that skips says so")]
fn open(fixture: &Fixture, name: &str) -> Option<Browser> {
    let browser = Browser::open(&format!("http://{}/", fixture.address), name);
    match browser {
        Some(_) => bedplate_peers::uses("browser"),
        None => println!("SKIPPED: the chat page is tested in Chromium, which is not installed"),
    }
    browser
}

const ASK: &str = "document.getElementById('ask').value = 'the garden é 日本語 🌍'; document.getElementById('form').requestSubmit();";

#[test]
fn a_question_is_answered_and_the_page_fits_phones_and_desks() {
    let fixture = Fixture::start(Parrot::echoing());
    let Some(mut browser) = open(&fixture, "asks") else { return };
    browser.until("document.getElementById('model').value === 'parrot'");
    browser.resize(1400, 900);
    browser.picture("empty-1400");
    browser.value(ASK);
    browser.until("document.querySelector('article.assistant .figures')");
    assert_eq!(
        browser.value("document.querySelector('article.assistant .said').textContent"),
        "the garden é 日本語 🌍"
    );
    assert_eq!(
        browser.value("document.querySelector('article.user .said').textContent"),
        "the garden é 日本語 🌍"
    );
    browser.value("document.getElementById('open').click()");
    for (width, height) in [(360, 740), (1400, 900)] {
        browser.resize(width, height);
        assert_eq!(browser.value("document.documentElement.scrollWidth"), width, "nothing is cut off");
        let inside = "[...document.querySelectorAll('button, input, select, textarea')].filter((e) => e.offsetParent)\
            .every((e) => { const box = e.getBoundingClientRect(); return box.left >= 0 && box.right <= innerWidth; })";
        assert_eq!(browser.value(inside), true);
        browser.picture(&format!("answered-{width}"));
    }
    browser.call(
        "Emulation.setEmulatedMedia",
        serde_json::json!({ "features": [{ "name": "prefers-color-scheme", "value": "dark" }] }),
    );
    browser.picture("dark-1400");
    let unlabelled =
        "[...document.querySelectorAll('input, select, textarea')].filter((e) => !e.labels.length).length";
    assert_eq!(browser.value(unlabelled), 0, "every field has a label");
    assert!(browser.exceptions.is_empty(), "{:?}", browser.exceptions);
}

#[test]
fn the_stop_button_ends_the_answer_and_its_work() {
    let parrot =
        Arc::new(Parrot::new(|_| "the garden is green ".repeat(300)).slow(Duration::from_millis(20)));
    let fixture = Fixture::start_many(vec![parrot.clone()], |_| {});
    let Some(mut browser) = open(&fixture, "stops") else { return };
    browser.until("document.getElementById('model').value === 'parrot'");
    browser.value(ASK);
    browser.until("document.querySelector('article.assistant .said')?.textContent.length > 20");
    browser.picture("writing");
    browser.value("document.getElementById('stop').click()");
    browser.until("document.getElementById('stop').hidden");
    wait_until("the engine was told", || parrot.cancelled.load(Ordering::Relaxed) == 1);
    browser.until("document.querySelector('article.assistant .figures').textContent.startsWith('stopped')");
}

#[test]
fn errors_are_shown_and_a_key_helps() {
    let fixture = Fixture::start_with(Parrot::echoing(), |options| options.keys = vec!["secret".into()]);
    let Some(mut browser) = open(&fixture, "errs") else { return };
    browser.until("document.querySelector('[role=alert]')");
    assert!(
        browser
            .value("document.querySelector('[role=alert]').textContent")
            .as_str()
            .unwrap()
            .contains("API key")
    );
    browser.picture("error");
    browser.value("at('key').value = 'secret'; at('key').dispatchEvent(new Event('change'));");
    browser.until(
        "document.getElementById('model').value === 'parrot' && !document.querySelector('[role=alert]')",
    );
    browser.value(ASK);
    browser.until("document.querySelector('article.assistant .figures')");
    browser.value("document.getElementById('most').value = '99999';");
    browser.value(ASK);
    browser.until(
        "document.querySelector('[role=alert]')?.textContent.includes('maximum context length is 2048')",
    );
}
