package belljar

// Support says whether a backend keeps a promise on this host.
type Support string

// Unknown is to be treated as no guarantee.
const (
	Supported   Support = "supported"
	Unsupported Support = "unsupported"
	Unknown     Support = "unknown"
)

// Capability is a promise of a backend, shown by a live self-test.
type Capability struct {
	Name     string   `json:"name"`
	Support  Support  `json:"support"`
	Reason   string   `json:"reason,omitempty"`   // one line
	Remedy   string   `json:"remedy,omitempty"`   // how to get it
	Evidence []string `json:"evidence,omitempty"` // names of the lab entries that attacked it here
}

// CapabilityNames lists the capabilities in display order.
var CapabilityNames = []string{
	"filesystem", "networkIsolation", "cpuLimits", "memoryLimits", "diskLimits", "pidsLimits", "cpuQuota",
	"streaming", "tty", "osFilesystemIsolation", "egressPolicy", "pause", "checkpoint", "fork", "ports", "remoteExecution",
}

// Applied says what became of a layer.
type Applied string

// What became of a layer.
const (
	LayerApplied     Applied = "applied"
	LayerOff         Applied = "off"
	LayerUnavailable Applied = "unavailable"
)

// LayerReport is one line of a confinement report, written by the trusted side
// from what it read back.
type LayerReport struct {
	Layer  Layer   `json:"layer"`
	Status Applied `json:"status"`
	Detail string  `json:"detail,omitempty"` // rule count, filter hash, cgroup path, inode number
	Reason string  `json:"reason,omitempty"` // why unavailable, how to get it
	Source string  `json:"source,omitempty"` // who says so: "supervisor", "keeper", "kernel read-back"
}

// Report says which layers confine something.
type Report struct {
	Mode   Mode          `json:"mode"`
	Layers []LayerReport `json:"layers"`
}

// Layer returns the line of one layer.
func (r Report) Layer(l Layer) LayerReport {
	for _, x := range r.Layers {
		if x.Layer == l {
			return x
		}
	}
	return LayerReport{Layer: l, Status: LayerUnavailable, Reason: "not reported"}
}
