//! A user's file adds and overrides entries, and errors in it name the line.

use bedplate_catalog::{Catalog, Need, Purchase};
use bedplate_diag::{Source, render_text};
use bedplate_units::{Bytes, Dollars};
use expect_test::{Expect, expect};
use proptest::prelude::*;

fn with(overlay: &str) -> Catalog {
    Catalog::with_overlays(&[Source::new("own.toml", overlay)])
        .unwrap_or_else(|error| panic!("{}", render_text(&error)))
}

fn refuses(overlay: &str, expected: Expect) {
    let error =
        Catalog::with_overlays(&[Source::new("own.toml", overlay)]).expect_err("the overlay is wrong");
    expected.assert_eq(&render_text(&error));
}

const OWN_NODE: &str = r#"
[[accelerator]]
name = "own-gpu"
title = "A GPU of our own"
vendor = "us"
generation = "first"
memory = "48 GB"
bf16 = "100 TFLOP/s"

[[instance]]
name = "rack-node"
provider = "on-premise"
accelerator = "own-gpu"
accelerators = 4
scale_out = "infiniband-ndr"
scale_out_bandwidth = "400 Gbps"
prices = [{ kind = "on-demand", per_hour = "$3.20", region = "basement", date = "2026-01" }]
"#;

#[test]
fn an_own_node_joins_the_catalog_and_books_its_figures_to_the_overlay() {
    let catalog = with(OWN_NODE);
    let node = catalog.instance("rack-node").unwrap();
    assert_eq!(catalog.accelerator_of(node).memory, Bytes::gb(48.0));
    assert_eq!(node.evidence.source_of("accelerators"), "own.toml");
    let price = node.prices.newest(Purchase::OnDemand, None).unwrap();
    assert_eq!((price.per_hour.hourly(), price.source.as_str()), (Dollars::new(3.2), "own.toml"));
    assert_eq!(catalog.reference("own.toml").unwrap().title, "your overlay own.toml");
}

#[test]
fn an_override_changes_its_fields_and_leaves_the_others_with_their_sources() {
    let before = Catalog::builtin();
    let after = with("[[accelerator]]\nname = \"H100\"\nmemory_usable = \"78 GB\"\n");
    let (old, new) = (before.accelerator("h100").unwrap(), after.accelerator("h100").unwrap());
    assert_eq!(new.memory_usable, Some(Bytes::gb(78.0)));
    assert_eq!(new.evidence.source_of("memory_usable"), "own.toml");
    assert_eq!(new.memory, old.memory);
    assert_eq!(new.evidence.source_of("memory"), old.evidence.source_of("memory"));
    assert_eq!(before.accelerators.len(), after.accelerators.len());
}

#[test]
fn an_own_price_joins_the_others_and_replaces_its_like() {
    let price = |kind: &str, region: &str| {
        format!("{{ kind = \"{kind}\", per_hour = \"$9\", region = \"{region}\", date = \"2026-10\" }}")
    };
    let overlay = format!(
        "[[instance]]\nname = \"p5.48xlarge\"\nprices = [{}, {}]\n",
        price("on-demand", "us-east-1"),
        price("reserved-1y", "mars")
    );
    let (before, after) = (Catalog::builtin(), with(&overlay));
    let (old, new) =
        (&before.instance("p5.48xlarge").unwrap().prices, &after.instance("p5.48xlarge").unwrap().prices);
    assert_eq!(new.spot, old.spot);
    assert_eq!(new.capacity_block, old.capacity_block);
    assert_eq!(new.reserved_1y.len(), old.reserved_1y.len() + 1);
    let here = new.newest(Purchase::OnDemand, Some("us-east-1")).unwrap();
    assert_eq!((here.per_hour.hourly(), here.source.as_str()), (Dollars::new(9.0), "own.toml"));
}

#[test]
fn only_what_an_overlay_sets_is_booked_to_its_source() {
    let catalog = with(
        "[sources.mine]\ntitle = \"our own bench\"\nkind = \"measured\"\n\
         [[accelerator]]\nname = \"h200\"\nsource = \"mine\"\nmemory_usable = \"140 GB\"\n",
    );
    let h200 = catalog.accelerator("h200").unwrap();
    assert_eq!(h200.evidence.source_of("memory_usable"), "mine");
    for field in ["bf16", "memory", "memory_bandwidth", "multiprocessors"] {
        let before = Catalog::builtin().accelerator("h200").unwrap().evidence.source_of(field).to_owned();
        assert_eq!(h200.evidence.source_of(field), before, "{field}");
    }
}

#[test]
fn the_later_of_two_overlays_wins() {
    let set = |size: &str| format!("[[accelerator]]\nname = \"h100\"\nmemory_usable = \"{size}\"\n");
    let (one, two) = (set("77 GB"), set("76 GB"));
    let catalog =
        Catalog::with_overlays(&[Source::new("1.toml", &one), Source::new("2.toml", &two)]).unwrap();
    assert_eq!(catalog.accelerator("h100").unwrap().memory_usable, Some(Bytes::gb(76.0)));
}

#[test]
fn wrong_overlays_name_line_key_and_remedy() {
    refuses(
        "[[accelerator]]\nname = \"own\"\n",
        expect![[r#"
        error[document/missing-key]: accelerator `own` lacks the key `title`
          in   own.toml:1:1: [[accelerator]]
        help:  add `title = …`, a text in quotes
    "#]],
    );
    refuses(
        "[[acelerator]]\nname = \"own\"\n",
        expect![[r#"
            error[document/unknown-key]: the file has the unknown key `acelerator`
              in   own.toml:1:3: [[acelerator]]
            help:  did you mean `accelerator`?
        "#]],
    );
    refuses(
        "[[accelerator]]\nname = \"h100\"\nmemory = \"0 GB\"\n",
        expect![[r#"
            error[document/bad-value]: `memory` of accelerator `h100` cannot be used: an accelerator has more than 0 and less than 1 PB
              in   own.toml:3:10: memory = "0 GB"
            help:  change the value as the message says
        "#]],
    );
    refuses(
        "[[accelerator]]\nname = \"h100\"\nmemory = \"80\"\n",
        expect![[r#"
        error[document/bad-value]: `memory` of accelerator `h100` cannot be used: `80` has no unit; a size reads like `80 GB`
          in   own.toml:3:10: memory = "80"
        help:  change the value as the message says
    "#]],
    );
    refuses(
        "[[accelerator]]\nname = \"h100\"\nmemory_band = \"3 TB/s\"\n",
        expect![[r#"
            error[document/unknown-key]: accelerator `h100` has the unknown key `memory_band`
              in   own.toml:3:1: memory_band = "3 TB/s"
            help:  did you mean `memory_bandwidth`?
        "#]],
    );
    refuses(
        "[[instance]]\nname = \"p5.48xlarge\"\naccelerator = \"h1000\"\n",
        expect![[r#"
        error[document/bad-value]: `accelerator` of instance `p5.48xlarge` cannot be used: the catalog has no accelerator called `h1000`; did you mean `h100`?
          in   own.toml:3:15: accelerator = "h1000"
        help:  change the value as the message says
    "#]],
    );
    refuses(
        "[[instance]]\nname = \"p5.48xlarge\"\nscale_out = \"nvlink4\"\n",
        expect![[r#"
        error[document/bad-value]: `scale_out` of instance `p5.48xlarge` cannot be used: `nvlink4` is a scale-up fabric, not scale-out
          in   own.toml:3:13: scale_out = "nvlink4"
        help:  change the value as the message says
    "#]],
    );
    refuses(
        "[[instance]]\nname = \"p5.48xlarge\"\naccelerators = 4000000000\n",
        expect![[r#"
        error[document/bad-value]: `accelerators` of instance `p5.48xlarge` cannot be used: 4000000000 is not between 1 and 100000
          in   own.toml:3:16: accelerators = 4000000000
        help:  change the value as the message says
    "#]],
    );
    refuses(
        "[[accelerator]]\nname = \"a\"\n[[accelerator]]\nname = \"A\"\n",
        expect![[r#"
        error[catalog/duplicate]: accelerator `A` is defined twice
          in   own.toml:4:8: name = "A"
        help:  remove or rename one of the two entries
    "#]],
    );
    refuses(
        "[[accelerator]]\nname = \"h100\"\naliases = [\"h200\"]\n",
        expect![[r#"
            error[catalog/duplicate]: accelerator `h200` is defined twice
              in   own.toml:3:11: aliases = ["h200"]
            help:  remove or rename one of the two entries
        "#]],
    );
    refuses(
        "[[instance]]\nname = \"p5.48xlarge\"\nprices = [{ kind = \"on-demand\", per_hour = \"$3\", region = \"x\", date = \"May\" }]\n",
        expect![[r#"
            error[document/bad-value]: `date` of a price of instance `p5.48xlarge` cannot be used: a date reads like 2025-06 or 2025-06-05
              in   own.toml:3:71: prices = [{ kind = "on-demand", per_hour = "$3", region = "x", date = "May" }]
            help:  change the value as the message says
        "#]],
    );
    refuses(
        "[[instance]]\nname = \"p5.48xlarge\"\nprices = [{ kind = \"on_demand\", per_hour = \"$3\", region = \"x\", date = \"2025-05\" }]\n",
        expect![[r#"
            error[document/bad-value]: `kind` of a price of instance `p5.48xlarge` cannot be used: `on_demand` is unknown; did you mean `on-demand`?
              in   own.toml:3:20: prices = [{ kind = "on_demand", per_hour = "$3", region = "x", date = "2025-05" }]
            help:  change the value as the message says
        "#]],
    );
    refuses(
        "[[instance]]\nname = \"bad name\"\n",
        expect![[r#"
            error[document/bad-value]: `name` of instance `bad name` cannot be used: a name has 1 to 80 letters, digits, `.`, `-` or `_`
              in   own.toml:2:8: name = "bad name"
            help:  change the value as the message says
        "#]],
    );
    refuses(
        "name = 3 = 4",
        expect![[r#"
        error[document/syntax]: this is not valid TOML: unexpected key or value, expected newline, `#`
          in   own.toml:1:10: name = 3 = 4
        help:  check quotes, brackets and `key = value` around the place shown
    "#]],
    );
}

#[test]
fn needs_select_instances() {
    let catalog = with(OWN_NODE);
    let names = |need: Need| -> Vec<&str> {
        let met = catalog.instances.iter().filter(|instance| need.is_met_by(instance, &catalog));
        met.map(|instance| instance.name.as_str()).collect()
    };
    let large =
        Need { memory: Some(">=141GB".parse().unwrap()), fabric: Some("efa".into()), ..Need::default() };
    let large = names(large);
    assert!(large.contains(&"p5en.48xlarge") && large.contains(&"p6-b200.48xlarge"), "{large:?}");
    assert!(!large.contains(&"p5.48xlarge") && !large.contains(&"rack-node"), "{large:?}");
    let cheap =
        Need { price: Some("<$4".parse().unwrap()), provider: Some("on-premise".into()), ..Need::default() };
    assert_eq!(names(cheap), ["rack-node"]);
    assert!(names(Need { accelerator: Some("no such".into()), ..Need::default() }).is_empty());
}

proptest! {
    #[test]
    fn no_overlay_makes_the_reader_panic(text in "(\\[\\[(accelerator|instance|fabric|storage|ultraserver)\\]\\]\n|name = \"[a-z0-9.]{0,6}\"\n|(memory|prices|aliases|source|sources|also) = (3|\"[0-9]{0,3} ?GB\"|\\[\\]|\\{\\})\n|\\PC){0,12}") {
        let _ = Catalog::with_overlays(&[Source::new("own.toml", &text)]);
    }
}

/// A host as `bedplate bench machine` writes it.
const HOST: &str = r#"
[[accelerator]]
name = "host"
title = "A processor"
vendor = "us"
generation = "host"
memory = "16 GB"
fp32 = "400 GFLOP/s"
memory_bandwidth = "30 GB/s"

[accelerator.measured]
threads = 2
copy = "30 GB/s"
cache = "32 MB"
losses = "3 GB/s"
optimizer = "25 GB/s"
operator = "4 us"

[accelerator.measured.fp32]
products = "300 GFLOP/s"
input_gradients = "290 GFLOP/s"
weight_gradients = "280 GFLOP/s"
half_size = 16.5
attention = "150 GFLOP/s"
attention_backward = "120 GFLOP/s"
half_keys = 24
stream = "20 GB/s"
stream_in_cache = "60 GB/s"
"#;

#[test]
fn a_measured_host_has_rates_by_format_and_lacks_those_that_were_not_measured() {
    let measured = with(HOST).accelerator("host").unwrap().measured.unwrap();
    let fp32 = measured.fp32.unwrap();
    assert_eq!((measured.threads, measured.bf16, fp32.half_keys), (2, None, 24.0));
    assert_eq!(fp32.weight_gradients.to_string(), "280 GFLOP/s");
    assert_eq!(Catalog::builtin().accelerator("h100").unwrap().measured, None);
}

#[test]
fn wrong_measured_rates_name_line_key_and_remedy() {
    refuses(
        &HOST.replace("copy = \"30 GB/s\"", "copy = \"0 GB/s\""),
        expect![[r#"
            error[document/bad-value]: `copy` of `measured` of accelerator `host` cannot be used: it is zero
              in   own.toml:13:8: copy = "0 GB/s"
            help:  change the value as the message says
        "#]],
    );
    refuses(
        &HOST.replace("half_keys", "half_key"),
        expect![[r#"
        error[document/missing-key]: `fp32` in `measured` of accelerator `host` lacks the key `half_keys`
          in   own.toml:19:1: [accelerator.measured.fp32]
        help:  add `half_keys = …`, a number
    "#]],
    );
    refuses(
        HOST.split("[accelerator.measured.fp32]").next().unwrap(),
        expect![[r#"
            error[document/bad-value]: `threads` of `measured` of accelerator `host` cannot be used: no format has rates; add a table fp32 or bf16
              in   own.toml:12:11: threads = 2
            help:  change the value as the message says
        "#]],
    );
}
