//! A parser of tshark's PDML output, an XML format of packets, protocols and fields.
//!
//! It supports only the XML that tshark writes: no text between tags, and no comments in packets.

use anyhow::{Context, Result, bail};

/// tshark's dissection of one packet.
#[derive(Debug, Default)]
pub(super) struct Dissection {
    /// The protocols, in order.
    pub(super) protocols: Vec<String>,
    /// The fields of all protocols, parents before children.
    pub(super) fields: Vec<Shown>,
}

/// A field as tshark shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// The protocol of the field.
    pub(super) protocol: String,
    /// The name in display filters; empty for a line of text.
    pub(super) name: String,
    /// The value.
    pub(super) show: String,
    /// The text in the user interface, which includes the meaning of the value.
    pub(super) label: String,
    /// The offset in the frame.
    pub(super) offset: usize,
    /// The length in bytes.
    pub(super) len: usize,
    /// Whether the field exists only for display filters.
    pub(super) hidden: bool,
}

/// Parses tshark's output.
pub(super) fn parse(pdml: &str) -> Result<Vec<Dissection>> {
    let mut packets: Vec<Dissection> = Vec::new();
    let mut rest = pdml;
    while let Some(start) = rest.find('<') {
        let tag = &rest[start + 1..];
        let end = end_of_tag(tag).context("tshark's output ends within a tag")?;
        rest = &tag[end + 1..];
        let tag = &tag[..end];
        let name = tag.split([' ', '/', '>']).next().unwrap_or_default();
        match name {
            "packet" => packets.push(Dissection::default()),
            "proto" | "field" => {
                let packet = packets.last_mut().context("tshark's output has a field before any packet")?;
                let shown = attributes(tag, packet.protocols.last())?;
                if name == "proto" {
                    packet.protocols.push(shown.name);
                } else {
                    packet.fields.push(shown);
                }
            }
            _ => {} // the XML declaration, and closing tags
        }
    }
    Ok(packets)
}

/// Returns the end of a tag: the first '>' that isn't in an attribute.
fn end_of_tag(tag: &str) -> Option<usize> {
    let mut quoted = false;
    tag.char_indices().find_map(|(at, c)| {
        quoted ^= c == '"';
        (c == '>' && !quoted).then_some(at)
    })
}

/// Parses the attributes of a tag.
fn attributes(tag: &str, protocol: Option<&String>) -> Result<Shown> {
    let mut shown = Shown { protocol: protocol.cloned().unwrap_or_default(), ..Shown::default() };
    let mut rest = tag;
    while let Some((before, after)) = rest.split_once("=\"") {
        let (value, after) =
            after.split_once('"').context("an attribute in tshark's output is not terminated")?;
        rest = after;
        match before.split_whitespace().next_back().unwrap_or_default() {
            "name" => shown.name = unescape(value)?,
            "show" => shown.show = unescape(value)?,
            "showname" => shown.label = unescape(value)?,
            "pos" => shown.offset = value.parse().context("a position in tshark's output is not a number")?,
            "size" => shown.len = value.parse().context("a size in tshark's output is not a number")?,
            "hide" => shown.hidden = value == "yes",
            _ => {}
        }
    }
    Ok(shown)
}

/// Replaces XML entities.
fn unescape(text: &str) -> Result<String> {
    let mut pieces = text.split('&');
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let Some((entity, rest)) = piece.split_once(';') else {
            bail!("tshark's output has an ampersand outside an entity: {text}");
        };
        plain.push(match entity {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "#x27" => '\'',
            _ => bail!("tshark's output has an unknown entity: {entity}"),
        });
        plain.push_str(rest);
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_PACKETS: &str = r#"<?xml version="1.0" encoding="utf-8"?>
<!-- You can find pdml2html.xsl in /usr/share/wireshark -->
<pdml version="0" creator="wireshark/4.0.17" capture_file="a.pcap">
<packet>
  <proto name="ip" showname="Internet Protocol Version 4" size="20" pos="0">
    <field name="ip.flags" showname="010. .... = Flags: Don&#x27;t &lt;f&gt;" size="1" pos="6" show="0x02">
      <field name="ip.addr" showname="x > y" hide="yes" size="4" pos="12" show="10.1.2.3" value="0a010203"/>
    </field>
  </proto>
</packet>


<packet>
  <proto name="fake-field-wrapper">
    <field name="" show="Timestamps" size="0" pos="20"/>
  </proto>
</packet>

</pdml>
"#;

    #[test]
    fn packets_have_their_protocols_and_fields() {
        let packets = parse(TWO_PACKETS).unwrap();
        assert_eq!(packets.len(), 2);
        assert_eq!(packets[0].protocols, ["ip"]);
        let flags = &packets[0].fields[0];
        let expected = Shown {
            protocol: "ip".to_owned(),
            name: "ip.flags".to_owned(),
            show: "0x02".to_owned(),
            label: "010. .... = Flags: Don't <f>".to_owned(),
            offset: 6,
            len: 1,
            hidden: false,
        };
        assert_eq!(*flags, expected);
        assert!(packets[0].fields[1].hidden);
        assert_eq!(packets[0].fields.len(), 2);
        assert_eq!(packets[1].fields[0].show, "Timestamps");
    }

    #[test]
    fn truncated_output_is_an_error() {
        assert!(parse(&TWO_PACKETS[..400]).is_err());
        assert!(parse("<field name=\"x\"/>").is_err());
        assert!(parse("<packet><proto name=\"&nbsp;\"/>").is_err());
    }
}
