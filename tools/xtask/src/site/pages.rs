//! The parts and pages of the site, in order.

use super::markdown;

/// The directory of the manual's chapters.
pub(super) const MANUAL: &str = "crates/adverb/src/manual";

/// A part of the site, for one kind of reader.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) title: &'static str,
    /// Whether its readers have installed packages, and neither a checkout nor a Rust compiler.
    pub(super) installed: bool,
    pub(super) pages: &'static [Page],
}

/// A page of the site.
#[derive(Debug)]
pub(super) struct Page {
    /// The name of its file, without the extension.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) source: Source,
    /// A picture of the README that follows the page's first paragraph, by the name of its file in docs/pictures.
    pub(super) picture: Option<&'static str>,
}

/// The text of a page.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// The manual's chapter with the page's name. It begins with a summary, and all its headings are sections.
    Chapter,
    /// A file that begins with its title.
    File(&'static str),
    /// The section with the page's title of a file.
    Section(&'static str),
    /// A file that is shown as a block of code in the named language, below the comment at its beginning.
    Listing(&'static str, &'static str),
}

/// The first page.
pub(super) const START: Page = page("index", "Start", Source::File("docs/site/index.md"));

/// The parts, in order.
pub(super) const PARTS: &[Part] = &[
    Part {
        title: "Run your verbs program anywhere",
        installed: true,
        pages: &[
            chapter("unmodified_programs", "Unmodified programs"),
            chapter("containers", "Containers and Kubernetes"),
        ],
    },
    Part {
        title: "Is my fabric healthy",
        installed: true,
        pages: &[
            Page { picture: Some("ping.svg"), ..chapter("fabric_health", "Probes of RDMA paths") },
            chapter("doctor", "Why doesn't RDMA work here?"),
            page("metrics", "Metrics", Source::File("docs/operate/metrics.md")),
            page("alerts", "Alert rules", Source::Listing("docs/operate/alerts.yml", "yaml")),
            page("json", "JSON output", Source::File("docs/operate/json.md")),
        ],
    },
    Part {
        title: "Read a trace",
        installed: true,
        pages: &[
            Page { picture: Some("trace-light.png"), ..chapter("reading_a_trace", "Traces") },
            chapter("listings", "Published listings and the standard"),
            page("trace-format", "The format of traces", Source::File("docs/trace-format.md")),
        ],
    },
    Part {
        title: "Rust guide",
        installed: false,
        pages: &[
            chapter("first_connection", "A first connection"),
            chapter("messages", "Messages"),
            chapter("streams", "Byte streams"),
            chapter("one_sided", "One-sided access to memory"),
            chapter("failure", "Failures"),
            chapter("devices", "Choosing a device"),
            chapter("security", "Security of connections"),
            chapter("clusters", "Clusters"),
            chapter("probes", "Probes in a program"),
            chapter("work_queues", "Work queues"),
            chapter("from_snowrdma", "From SnowRDMA"),
            page("alternatives", "Alternatives", Source::Section("README.md")),
        ],
    },
    Part {
        title: "Hardware",
        installed: true,
        pages: &[page("tested_devices", "Devices", Source::Section("README.md"))],
    },
];

const fn page(name: &'static str, title: &'static str, source: Source) -> Page {
    Page { name, title, source, picture: None }
}

const fn chapter(name: &'static str, title: &'static str) -> Page {
    page(name, title, Source::Chapter)
}

impl Page {
    /// Returns the path of the file with the page's text, from the root of the checkout.
    pub(super) fn path(&self) -> String {
        match self.source {
            Source::Chapter => format!("{MANUAL}/{}.md", self.name),
            Source::File(path) | Source::Section(path) | Source::Listing(path, _) => path.to_owned(),
        }
    }

    /// Whether the page is made of the whole file at a path, so that a link to the file becomes one to the page. A link to a
    /// file that a page lists downloads it.
    pub(super) fn shows(&self, path: &str) -> bool {
        matches!(self.source, Source::Chapter | Source::File(_)) && self.path() == path
    }

    /// Whether the page shows the section of a file to which a link with an anchor leads.
    pub(super) fn shows_section(&self, path: &str, anchor: &str) -> bool {
        let is_section = matches!(self.source, Source::Section(_)) && self.path() == path;
        is_section && anchor.strip_prefix('#') == Some(&markdown::anchor(self.title))
    }
}

/// Returns all pages.
pub(super) fn pages() -> impl Iterator<Item = &'static Page> {
    std::iter::once(&START).chain(PARTS.iter().flat_map(|part| part.pages))
}

/// Returns the table of contents, in mdBook's format.
pub(super) fn summary() -> String {
    let mut text = format!("# Summary\n\n[{}]({}.md)\n", START.title, START.name);
    for part in PARTS {
        text += &format!("\n# {}\n\n", part.title);
        for page in part.pages {
            text += &format!("- [{}]({}.md)\n", page.title, page.name);
        }
    }
    text
}
