//! The output as JSON, one line per event.

use std::time::Duration;

use adverb::probe::mesh::{Evidence, Fault, Suspect, Verdict};
use serde_json::{Value, json};

use super::results::Results;
use super::text;
use crate::json::nanos;

/// Returns the first line: the members, each with its device or `null` if it is not an address of this host.
pub(super) fn start(members: &[(String, Option<String>, Option<String>)], classes: &[u8]) -> Value {
    let members: Vec<Value> = members
        .iter()
        .map(|(address, device, rail)| json!({ "address": address, "device": device, "rail": rail }))
        .collect();
    json!({ "event": "start", "members": members, "classes": classes })
}

/// Returns the line of a fault that was named for the first time.
pub(super) fn named(elapsed: Duration, fault: &Fault) -> Value {
    let mut value = json!({ "event": "fault" });
    let fields = [("after_ns".to_owned(), json!(nanos(elapsed)))].into_iter().chain(fault_fields(fault));
    value.as_object_mut().expect("an object").extend(fields);
    value
}

/// Returns the last line: the verdict, the faults and all results.
pub(super) fn summary(results: &Results, elapsed: Duration) -> Value {
    let faults: Vec<Value> = results
        .named
        .iter()
        .map(|(time, fault)| {
            let fields = [("after_ns".to_owned(), json!(nanos(*time)))];
            Value::Object(fields.into_iter().chain(fault_fields(fault)).collect())
        })
        .collect();
    let routes: Vec<Value> = results
        .matrix
        .totals()
        .map(|(route, cell)| {
            let percentile = |percentile| {
                let rtt = results.percentile(route.source, route.destination, percentile);
                rtt.map(nanos)
            };
            json!({
                "source": route.source,
                "destination": route.destination,
                "class": route.class,
                "probes": cell.probes,
                "losses": cell.losses(),
                "return_lost": cell.return_lost,
                "late": cell.late,
                "rtt_p50_ns": percentile(50.0),
                "rtt_p99_ns": percentile(99.0),
                "max_responder_delay_ns": nanos(cell.responder.max),
                "max_prober_delay_ns": nanos(cell.prober.max),
            })
        })
        .collect();
    json!({
        "event": "summary",
        "elapsed_ns": nanos(elapsed),
        "verdict": match verdict(results) {
            Verdict::Healthy => "healthy",
            Verdict::Faulty => "faulty",
            Verdict::NotEnoughEvidence => "not enough evidence",
        },
        "faults": faults,
        "gaps": text::gaps(results),
        "probes": results.diagnosis.probes,
        "losses": results.diagnosis.losses,
        "loss_bound": results.diagnosis.loss_bound,
        "routes": routes,
    })
}

/// Returns the verdict of the whole run: faults that were named earlier count too.
pub(super) fn verdict(results: &Results) -> Verdict {
    if results.named.is_empty() { results.diagnosis.verdict() } else { Verdict::Faulty }
}

fn fault_fields(fault: &Fault) -> Vec<(String, Value)> {
    let (kind, part) = match &fault.suspect {
        Suspect::Nic(address) => ("nic", json!({ "address": address })),
        Suspect::Path(one, other) => ("path", json!({ "addresses": [one, other] })),
        Suspect::Rail(name) => ("rail", json!({ "rail": name })),
        Suspect::Class(class) => ("class", json!({ "class": class })),
        Suspect::NicClass(address, class) => ("nic_class", json!({ "address": address, "class": class })),
        Suspect::Everywhere => ("everywhere", json!({})),
        Suspect::Unreachable(address) => ("unreachable", json!({ "address": address })),
        Suspect::SlowProcess(addresses) => ("slow_process", json!({ "addresses": addresses })),
        _ => ("other", json!({})),
    };
    let mut fields = vec![("kind".to_owned(), json!(kind)), ("text".to_owned(), json!(fault.to_string()))];
    if let Value::Object(part) = part {
        fields.extend(part);
    }
    if let Evidence::Loss { p_value, witnesses, .. } = &fault.evidence {
        fields.push(("p_value".to_owned(), json!(p_value)));
        fields.push(("witnesses".to_owned(), json!(witnesses)));
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::super::results::samples;
    use super::*;

    #[test]
    fn fault_and_summary_have_all_fields() {
        let results = samples::lossy(5);
        let (time, fault) = &results.named[0];
        let named = named(*time, fault);
        assert_eq!((&named["event"], &named["kind"]), (&json!("fault"), &json!("nic")));
        assert_eq!(named["address"], "10.0.0.3");
        let summary = summary(&results, Duration::from_secs(10));
        assert_eq!(summary["verdict"], "faulty");
        assert_eq!(summary["faults"][0]["kind"], "nic");
        assert_eq!(summary["routes"].as_array().unwrap().len(), 20);
        let route = &summary["routes"][0];
        assert_eq!(
            (&route["probes"], &route["losses"], &route["class"]),
            (&json!(100), &json!(0), &json!(0))
        );
    }
}
