package main

import (
	"bufio"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

var helpers = map[string]func([]string) error{
	"pki":             pki,
	"patch-manifests": patchManifests,
	"nodes":           nodes,
}

// ---------------------------------------------------------------- certificates

type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

func writePEM(path, kind string, der []byte, mode os.FileMode) ([]byte, error) {
	b := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	return b, os.WriteFile(path, b, mode)
}

func newKey(path string) (*ecdsa.PrivateKey, []byte, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		return nil, nil, err
	}
	b, err := writePEM(path, "EC PRIVATE KEY", der, 0o600)
	return k, b, err
}

func serial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return n
}

func newCA(dir, name string, life time.Duration) (*authority, error) {
	k, _, err := newKey(filepath.Join(dir, name+".key"))
	if err != nil {
		return nil, err
	}
	return selfSign(dir, name, k, life)
}

// newWebhookCA makes the CA that Kueue's certificate rotator accepts as it finds it:
// an RSA key in PKCS#1 form, and a certificate that names itself kueue-ca.
func newWebhookCA(dir, name string, life time.Duration) (*authority, error) {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	if _, err := writePEM(filepath.Join(dir, name+".key"), "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(k), 0o600); err != nil {
		return nil, err
	}
	return selfSign(dir, name, k, life, "kueue-ca")
}

func selfSign(dir, name string, k crypto.Signer, life time.Duration, dns ...string) (*authority, error) {
	t := &x509.Certificate{SerialNumber: serial(), Subject: pkix.Name{CommonName: "kubeci-" + name}, DNSNames: dns,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment}
	der, err := x509.CreateCertificate(rand.Reader, t, t, k.Public(), k)
	if err != nil {
		return nil, err
	}
	b, err := writePEM(filepath.Join(dir, name+".crt"), "CERTIFICATE", der, 0o644)
	if err != nil {
		return nil, err
	}
	c, err := x509.ParseCertificate(der)
	return &authority{c, k, b}, err
}

func (a *authority) issue(base, cn string, orgs, dns []string, ips []string, life time.Duration) (crt, key []byte, err error) {
	k, key, err := newKey(base + ".key")
	if err != nil {
		return nil, nil, err
	}
	t := &x509.Certificate{SerialNumber: serial(), Subject: pkix.Name{CommonName: cn, Organization: orgs},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life), BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, DNSNames: dns}
	for _, ip := range ips {
		t.IPAddresses = append(t.IPAddresses, net.ParseIP(ip))
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, k.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	crt, err = writePEM(base+".crt", "CERTIFICATE", der, 0o644)
	return crt, key, err
}

// pki writes every key, certificate, kubeconfig and token the control plane needs.
// The controllers get client certificates whose common name is the name of
// their service account, so their own RBAC rules apply to them.
func pki(args []string) error {
	fs := flag.NewFlagSet("pki", flag.ContinueOnError)
	dir := fs.String("dir", "", "folder to write")
	server := fs.String("server", "", "https address of the API server")
	serviceIP := fs.String("service-ip", "10.96.0.1", "address of the kubernetes service")
	days := fs.Int("days", 365, "validity; below 91 the webhook certificate rotator replaces what it finds")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *dir == "" || *server == "" {
		return errors.New("-dir and -server are required")
	}
	life := time.Duration(*days) * 24 * time.Hour
	if err := os.MkdirAll(*dir, 0o700); err != nil {
		return err
	}
	ca, err := newCA(*dir, "ca", life)
	if err != nil {
		return err
	}
	front, err := newCA(*dir, "front-proxy-ca", life)
	if err != nil {
		return err
	}
	if _, _, err = front.issue(filepath.Join(*dir, "front-proxy-client"), "front-proxy-client", nil, nil, nil, life); err != nil {
		return err
	}
	if _, _, err = ca.issue(filepath.Join(*dir, "apiserver"), "kube-apiserver", nil,
		[]string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		[]string{"127.0.0.1", *serviceIP}, life); err != nil {
		return err
	}
	// etcd has its own CA: a client of the API server must not be able to reach past it.
	etcdCA, err := newCA(*dir, "etcd-ca", life)
	if err != nil {
		return err
	}
	for _, n := range []string{"etcd", "etcd-client"} {
		if _, _, err = etcdCA.issue(filepath.Join(*dir, n), n, nil, []string{"localhost"}, []string{"127.0.0.1"}, life); err != nil {
			return err
		}
	}
	sa, _, err := newKey(filepath.Join(*dir, "sa.key"))
	if err != nil {
		return err
	}
	pub, err := x509.MarshalPKIXPublicKey(sa.Public())
	if err != nil {
		return err
	}
	if _, err = writePEM(filepath.Join(*dir, "sa.pub"), "PUBLIC KEY", pub, 0o644); err != nil {
		return err
	}
	hooks, err := newWebhookCA(*dir, "webhook-ca", life)
	if err != nil {
		return err
	}
	for _, w := range []string{"kueue", "jobset"} {
		d := filepath.Join(*dir, "webhook-"+w)
		if err = os.MkdirAll(d, 0o700); err != nil {
			return err
		}
		if _, _, err = hooks.issue(filepath.Join(d, "tls"), w+"-webhook", nil,
			[]string{"localhost", fmt.Sprintf("%s-webhook-service.%s-system.svc", w, w)}, []string{"127.0.0.1"}, life); err != nil {
			return err
		}
	}
	users := []struct {
		name, cn string
		orgs     []string
	}{
		{"admin", "kubeci-admin", []string{"system:masters"}},
		{"kube-controller-manager", "system:kube-controller-manager", nil},
		{"kube-scheduler", "system:kube-scheduler", nil},
		{"kwok", "system:serviceaccount:kube-system:kwok-controller", nil},
		{"jobset", "system:serviceaccount:jobset-system:jobset-controller-manager", nil},
		{"kueue", "system:serviceaccount:kueue-system:kueue-controller-manager", nil},
	}
	enc := base64.StdEncoding.EncodeToString
	for _, u := range users {
		crt, key, err := ca.issue(filepath.Join(*dir, "client-"+u.name), u.cn, u.orgs, nil, nil, life)
		if err != nil {
			return err
		}
		kc := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: kubeci, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: %s, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: kubeci, context: {cluster: kubeci, user: %s}}]
current-context: kubeci
`, *server, enc(ca.pem), u.name, enc(crt), enc(key), u.name)
		if err := os.WriteFile(filepath.Join(*dir, u.name+".kubeconfig"), []byte(kc), 0o600); err != nil {
			return err
		}
	}
	var csv strings.Builder
	for _, t := range []struct{ user, groups string }{{"token-admin", "system:masters"}, {"token-user", "kubeci:users"}} {
		raw := make([]byte, 24)
		if _, err := rand.Read(raw); err != nil {
			return err
		}
		tok := hex.EncodeToString(raw)
		fmt.Fprintf(&csv, "%s,%s,%s,%q\n", tok, t.user, t.user, t.groups)
		if err := os.WriteFile(filepath.Join(*dir, t.user+".token"), []byte(tok), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(*dir, "tokens.csv"), []byte(csv.String()), 0o600)
}

// ---------------------------------------------------------------- manifests

// patchManifests reads YAML documents, drops the kinds that only make sense
// inside a cluster and points every webhook at a loopback address.
func patchManifests(args []string) error {
	fs := flag.NewFlagSet("patch-manifests", flag.ContinueOnError)
	url := fs.String("url", "", "base address of the webhook server, such as https://127.0.0.1:9443")
	caFile := fs.String("ca", "", "CA certificate to trust")
	drop := fs.String("drop", "Deployment,Service,APIService,Secret", "kinds to leave out")
	only := fs.String("only", "", "kinds to keep; empty keeps all")
	skip := fs.String("skip-webhooks", "", "webhook names to leave out")
	keep := fs.String("keep-webhooks", "", "resources (such as jobs,jobsets) whose webhooks are kept; empty keeps all")
	if err := fs.Parse(args); err != nil {
		return err
	}
	set := func(s string) map[string]bool {
		m := map[string]bool{}
		for _, x := range strings.Split(s, ",") {
			if x != "" {
				m[x] = true
			}
		}
		return m
	}
	dropped, onlyKinds, skipped, keepRes := set(*drop), set(*only), set(*skip), set(*keep)
	ca, err := os.ReadFile(*caFile)
	if err != nil {
		return err
	}
	bundle := base64.StdEncoding.EncodeToString(ca)
	point := func(cc map[string]any) {
		path := ""
		if svc, ok := cc["service"].(map[string]any); ok {
			path, _ = svc["path"].(string)
			delete(cc, "service")
			cc["url"] = *url + path
		}
		cc["caBundle"] = bundle
	}
	dec := utilyaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	for {
		doc, err := dec.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var o map[string]any
		if err := yaml.Unmarshal(doc, &o); err != nil {
			return err
		}
		kind, _ := o["kind"].(string)
		if kind == "" || dropped[kind] || (len(onlyKinds) > 0 && !onlyKinds[kind]) {
			continue
		}
		switch kind {
		case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration":
			hooks, _ := o["webhooks"].([]any)
			out := hooks[:0]
			for _, h := range hooks {
				m := h.(map[string]any)
				if n, _ := m["name"].(string); skipped[n] {
					continue
				}
				if len(keepRes) > 0 && !touches(m, keepRes) {
					continue
				}
				if cc, ok := m["clientConfig"].(map[string]any); ok {
					point(cc)
				}
				out = append(out, m)
			}
			o["webhooks"] = out
		case "CustomResourceDefinition":
			if cc, ok, _ := unstructured.NestedFieldNoCopy(o, "spec", "conversion", "webhook", "clientConfig"); ok {
				if m, ok := cc.(map[string]any); ok {
					point(m)
				}
			}
		}
		b, err := yaml.Marshal(o)
		if err != nil {
			return err
		}
		fmt.Printf("---\n%s", b)
	}
}

func touches(hook map[string]any, want map[string]bool) bool {
	rules, _ := hook["rules"].([]any)
	for _, r := range rules {
		res, _ := r.(map[string]any)["resources"].([]any)
		for _, x := range res {
			if s, _ := x.(string); want[strings.SplitN(s, "/", 2)[0]] {
				return true
			}
		}
	}
	return false
}

// ---------------------------------------------------------------- nodes

func config(kubeconfig string) (*rest.Config, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	c.QPS, c.Burst = -1, -1
	return c, nil
}

func parallel(n, workers int, f func(i int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	for w := 0; w < workers; w++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(i); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	wg.Wait()
	close(errs)
	return <-errs
}

// nodes creates fake nodes up to -count (those that exist are left alone) and waits until all are Ready.
func nodes(args []string) error {
	fs := flag.NewFlagSet("nodes", flag.ContinueOnError)
	kc := fs.String("kubeconfig", "", "kubeconfig")
	count := fs.Int("count", 20, "how many nodes there shall be")
	gpus := fs.Int("gpus", 8, "GPUs per node")
	cpu := fs.Int("cpu", 128, "CPUs per node")
	mem := fs.Int("memory-gib", 2048, "memory per node")
	perRack := fs.Int("nodes-per-rack", 4, "nodes in a rack")
	perBlock := fs.Int("racks-per-block", 8, "racks in a block")
	prefix := fs.String("topology-prefix", "topology.kubeci.test", "prefix of the block and rack labels")
	timeout := fs.Duration("timeout", 5*time.Minute, "how long to wait for Ready")
	if err := fs.Parse(args); err != nil {
		return err
	}
	c, err := config(*kc)
	if err != nil {
		return err
	}
	c.ContentType, c.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	cl, err := kubernetes.NewForConfig(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	have := map[string]bool{}
	list, err := cl.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range list.Items {
		have[n.Name] = true
	}
	start := time.Now()
	q := func(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }
	err = parallel(*count, 8, func(i int) error {
		name := fmt.Sprintf("node-%05d", i)
		if have[name] {
			return nil
		}
		rack := i / *perRack
		block := rack / *perBlock
		res := corev1.ResourceList{"cpu": q(*cpu), "memory": *resource.NewQuantity(int64(*mem)<<30, resource.BinarySI),
			"pods": q(110), "ephemeral-storage": *resource.NewQuantity(4<<40, resource.BinarySI), "nvidia.com/gpu": q(*gpus)}
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
			Annotations: map[string]string{"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
			Labels: map[string]string{"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "type": "kwok",
				"nvidia.com/gpu.present": "true", "node.kubernetes.io/instance-type": "fake-8gpu",
				"topology.kubernetes.io/region": "r0", "topology.kubernetes.io/zone": "z0",
				*prefix + "/block": fmt.Sprintf("b%04d", block), *prefix + "/rack": fmt.Sprintf("r%05d", rack)}},
			Status: corev1.NodeStatus{Allocatable: res, Capacity: res, Phase: corev1.NodeRunning,
				NodeInfo: corev1.NodeSystemInfo{Architecture: "amd64", OperatingSystem: "linux", KubeletVersion: "fake"}}}
		_, err := cl.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	created := time.Since(start)
	for {
		list, err := cl.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		ready := 0
		for _, n := range list.Items {
			for _, cond := range n.Status.Conditions {
				if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue && len(n.Spec.Taints) == 0 {
					ready++
				}
			}
		}
		if ready >= *count {
			fmt.Printf("%d nodes ready and untainted: created in %.2f s, ready after %.2f s\n", ready, created.Seconds(), time.Since(start).Seconds())
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("only %d of %d nodes ready", ready, *count)
		case <-time.After(200*time.Millisecond + time.Duration(*count)*time.Millisecond):
		}
	}
}
