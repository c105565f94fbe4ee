//! The pages of all error codes, from every crate that has some.

use bedplate_diag::Page;

use crate::commands;

/// Every page, ordered by code.
pub(crate) fn all() -> Vec<&'static Page> {
    let mut pages: Vec<&'static Page> = [
        bedplate_document::PAGES,
        bedplate_catalog::PAGES,
        bedplate_topology::PAGES,
        bedplate_transformer::PAGES,
        bedplate_layout::PAGES,
        bedplate_job::PAGES,
        bedplate_perf::PAGES,
        bedplate_search::PAGES,
        bedplate_calibrate::PAGES,
        bedplate_calibrate::own_runs::PAGES,
        bedplate_goodput::PAGES,
        bedplate_replay::jobs::PAGES,
        bedplate_replay::requests::PAGES,
        bedplate_deploy::PAGES,
        bedplate_deploy::REPLICA_PAGES,
        bedplate_gangs::PAGES,
        bedplate_health::PAGES,
        bedplate_exporter::PAGES,
        bedplate_record::PAGES,
        bedplate_data::PAGES,
        bedplate_kernels::PAGES,
        bedplate_network::PAGES,
        bedplate_comm::PAGES,
        bedplate_checkpoint::PAGES,
        bedplate_serve::PAGES,
        bedplate_train::PAGES,
        bedplate_gateway::PAGES,
        bedplate_load::PAGES,
        bedplate_journal::PAGES,
        bedplate_agent::PAGES,
        bedplate_launch::PAGES,
        bedplate_launch::local::PAGES,
        bedplate_local::PAGES,
        bedplate_kubernetes::KUBERNETES_PAGES,
        bedplate_binder::BINDER_PAGES,
        bedplate_doctor::deep::PAGES,
        bedplate_logs::PAGES,
        bedplate_evidence::PAGES,
        bedplate_drivers::PAGES,
        bedplate_drivers::SLURM_PAGES,
        bedplate_daemon::PAGES,
        bedplate_daemon::API_PAGES,
        bedplate_terminal::files::PAGES,
        bedplate_terminal::PAGES,
        bedplate_terminal::benchmarks::PAGES,
        commands::catalog::PAGES,
        commands::chaos::PAGES,
        commands::cluster::PAGES,
        commands::comm::PAGES,
        commands::dashboards::PAGES,
        commands::doctor::PAGES,
        commands::error::PAGES,
        commands::export::PAGES,
        commands::health::PAGES,
        commands::job::ATTACH_PAGES,
        commands::job::LOGS_PAGES,
        commands::plan::PAGES,
        commands::plan::RUN_PAGES,
        commands::replay::PAGES,
        commands::serve::PAGES,
        commands::submit::PAGES,
        crate::job_file::PAGES,
        commands::unit::PAGES,
    ]
    .concat();
    pages.sort_by_key(|page| page.code);
    pages
}

/// The generated parts of the book, kept current by tests.
#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use bedplate_diag::Class;
    use bedplate_testkit::book;
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn class_text(class: Class) -> &'static str {
        match class {
            Class::User => "The input or the request is wrong; retrying it unchanged fails again.",
            Class::Usage => "The command line could not be parsed.",
            Class::Transient => "The same request may succeed later.",
            Class::Bug => "A bug in this program.",
        }
    }

    #[test]
    fn every_error_code_has_its_page_in_the_book() {
        let mut index = String::from(
            "# Error codes\n\nOne page per code, generated from the program. `bedplate error CODE` prints the same.\n\n\
             | code | exit | remedy |\n|---|---|---|\n",
        );
        let mut expected: Vec<PathBuf> = Vec::new();
        for page in all() {
            let path = format!("errors/{}.md", page.code);
            let code = page.class.exit_code();
            book::check(
                &path,
                &format!(
                    "# {}\n\n{}\n\n**Remedy:** {}.\n\n**Class:** {}, exit code {code}. {}\n",
                    page.code,
                    page.meaning,
                    page.remedy,
                    page.class.name(),
                    class_text(page.class)
                ),
            );
            index +=
                &format!("| [{0}]({0}.md) | {code} | {1} |\n", page.code, page.remedy.replace('|', "\\|"));
            expected.push(path.into());
        }
        book::check("errors/README.md", &index);
        let folder = bedplate_testkit::root().join("docs/errors");
        for area in fs::read_dir(&folder).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
            for file in fs::read_dir(area.path()).unwrap().flatten() {
                let path = PathBuf::from("errors").join(area.file_name()).join(file.file_name());
                assert!(expected.contains(&path), "{} belongs to no code", path.display());
            }
        }
    }

    /// The files of a folder of the book are those that were generated, and no others.
    fn check_folder(folder: &str, expected: &[String]) {
        let root = bedplate_testkit::root().join("docs").join(folder);
        for area in fs::read_dir(&root).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
            for file in fs::read_dir(area.path()).unwrap().flatten() {
                let [area, file] =
                    [area.file_name(), file.file_name()].map(|name| name.into_string().unwrap());
                let path = format!("{folder}/{area}/{file}");
                assert!(expected.contains(&path), "{path} belongs to nothing");
            }
        }
    }

    #[test]
    fn every_rule_and_every_xid_has_its_page_in_the_book() {
        use bedplate_health::{Profile, Rules, XidCatalog};
        let mut index = String::from(
            "# Health rules and XIDs\n\nGenerated from `data/health`. `bedplate health rules NAME` and `bedplate health xid CODE` print the same; \
             [../health.md](../health.md) is the guide.\n\n## Rules\n\n| rule | calls for | finds |\n|---|---|---|\n",
        );
        let mut expected = Vec::new();
        for rule in Rules::built_in(Profile::Nvidia).all() {
            let [nvidia, aws, strict] = Profile::ALL.map(|profile| rule.action(profile));
            let path = format!("health/{}.md", rule.name);
            let text = format!(
                "# {}\n\n**Finds:** {}.\n\n**When:** {}.\n\n**Why it matters:** {}\n\n**Remedy:** {}.\n\n\
                 **Calls for:** {nvidia} (profile nvidia), {aws} (aws-ec2), {strict} (strict). Severity {}, layer {}.\n",
                rule.name,
                rule.summary,
                crate::commands::health::when(rule),
                rule.why,
                rule.remedy,
                rule.severity,
                rule.layer
            );
            book::check(&path, &text);
            index += &format!("| [{0}]({0}.md) | {nvidia} | {1} |\n", rule.name, rule.summary);
            expected.push(path);
        }
        index += "\n## XIDs\n\n| XID | nvidia | aws-ec2 | strict | meaning |\n|---|---|---|---|---|\n";
        for entry in XidCatalog::default().entries() {
            let [nvidia, aws, strict] = Profile::ALL.map(|profile| entry.action(profile));
            let path = format!("health/xid/{}.md", entry.xid);
            let follows = if entry.follows_another {
                "\n\nIt usually follows another XID of the same GPU; then that one counts."
            } else {
                ""
            };
            let text = format!(
                "# XID {}\n\n{} (`{}`).\n\nNVIDIA's action: {}. Layer: {}.\n\n| profile | calls for |\n|---|---|\n\
                 | nvidia | {nvidia} |\n| aws-ec2 | {aws} |\n| strict | {strict} |{follows}\n\nSources: {} (data/health/sources.md).\n",
                entry.xid, entry.meaning, entry.mnemonic, entry.nvidia_says, entry.layer, entry.sources
            );
            book::check(&path, &text);
            index += &format!(
                "| [{0}](xid/{0}.md) | {nvidia} | {aws} | {strict} | {1} |\n",
                entry.xid, entry.meaning
            );
            expected.push(path);
        }
        book::check("health/README.md", &index);
        check_folder("health", &expected);
    }

    #[test]
    fn every_metric_is_in_the_book() {
        let mut text = String::from(
            "# Metrics\n\nEvery metric that `bedplate export` and the nodes of a cluster write, generated from the program. Series appear where the \
             hardware is there. The daemon's own metrics are in [daemon.md](daemon.md), those of a training run in [train.md](train.md).\n",
        );
        let areas = ["GPUs", "Network cards", "Storage", "Host and Neuron", "The exporter itself"];
        for (title, area) in areas.into_iter().zip(bedplate_exporter::metrics::ALL) {
            text += &format!("\n## {title}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n");
            for metric in *area {
                let labels = metric.labels.join(", ");
                text +=
                    &format!("| `{}` | {} | {labels} | {} |\n", metric.name, metric.kind.name(), metric.help);
            }
        }
        book::check("metrics.md", &text);
    }

    #[test]
    fn codes_are_unique_and_texts_are_of_one_form() {
        let pages = all();
        for pair in pages.windows(2) {
            assert_ne!(pair[0].code, pair[1].code);
        }
        for page in pages {
            assert!(
                page.code.split_once('/').is_some_and(|(area, what)| !area.is_empty() && !what.is_empty())
            );
            assert!(page.meaning.ends_with('.'), "{}: {}", page.code, page.meaning);
            assert!(!page.remedy.ends_with('.'), "{}: {}", page.code, page.remedy);
        }
    }

    /// Commands that a text names: at the beginning of a line or of a quotation.
    fn commands_in(text: &str) -> impl Iterator<Item = &str> {
        let lines = text
            .lines()
            .filter_map(|line| line.trim_start().trim_start_matches("$ ").strip_prefix("bedplate "));
        let quoted = text.split("`bedplate ").skip(1).filter_map(|rest| rest.split('`').next());
        lines.chain(quoted)
    }

    /// The first of these words that should be a command and is not.
    fn not_a_command<'a>(command: &clap::Command, words: &'a str) -> Option<&'a str> {
        let mut at = command;
        for word in words.split_whitespace() {
            let is_name = word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-');
            if !at.has_subcommands() || !is_name {
                return None;
            }
            match at.find_subcommand(word) {
                Some(found) => at = found,
                None => return Some(word),
            }
        }
        None
    }

    #[test]
    fn every_command_that_a_text_names_exists() {
        let mut command = Cli::command().disable_help_subcommand(false);
        command.build();
        let mut texts: Vec<(String, String)> = Vec::new();
        texts.extend(
            all().iter().map(|page| (page.code.to_owned(), format!("{}\n{}", page.meaning, page.remedy))),
        );
        let root = bedplate_testkit::root();
        for entry in fs::read_dir(root.join("docs")).unwrap().chain(fs::read_dir(&root).unwrap()).flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                texts.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
            }
        }
        assert!(
            texts.iter().any(|(place, _)| place.ends_with("docs/commands.md")),
            "it has the help of every command"
        );
        let mut seen = 0;
        for (place, text) in &texts {
            for words in commands_in(text) {
                seen += 1;
                let wrong = not_a_command(&command, words);
                assert_eq!(wrong, None, "{place} names `bedplate {words}`");
            }
        }
        assert!(seen > 300, "only {seen} commands were found");
    }

    #[test]
    fn the_command_reference_is_current() {
        let mut command = Cli::command().disable_help_subcommand(true).term_width(100);
        command.build();
        let mut text = String::from(
            "# Commands\n\nGenerated from the program: the help of every command. That of the benchmarks is in [bench-commands.md](bench-commands.md).\n",
        );
        book::add_help(&mut command, "bedplate", &mut text);
        book::check("commands.md", &text);
    }
}
